#!/bin/bash
# What the guest runs: installs the programs as `make install` does, then every
# row of jobs (package, folder, test binary, tests, timeout, tests to skip), each
# as a stream of go test's JSON records; or the one command of the file cmd. Where
# there are jobs for after a reboot, the guest reboots as an administrator has it do.
export STRICT=1 STEPD_GUEST=1 STEPD_BIN=/share/src/bin
kept=/var/lib/vmtest # what the second boot has to know
status=0
run() {
	while IFS=$'\t' read -r pkg dir binary tests timeout skip; do
		cd "/share/src/$dir" || exit 1
		/share/test2json -t -p "$pkg" "/share/$binary" -test.v=test2json -test.paniconexit0 \
			-test.run "$tests" -test.skip "$skip" -test.timeout "$timeout" < /dev/null || status=1
	done < "$1"
}
if [ -e $kept/status ]; then
	status=$(cat $kept/status)
	run /share/jobs-after-reboot
	exit "$status"
fi
cp -a root/. /
if [ -d slurm ]; then
	mkdir -p /var/cache/stepd-slurm && ln -s /share/slurm/* /var/cache/stepd-slurm/
fi
systemctl daemon-reload
if [ -e cmd ]; then
	exec bash ./cmd
fi
run /share/jobs
run /share/jobs-before-reboot
if [ -s /share/jobs-after-reboot ]; then
	mkdir -p $kept && echo $status > $kept/status
	echo VM-REBOOT
	# What `systemctl reboot` does without a logind that it asks first.
	systemctl --no-block --job-mode=replace-irreversibly start reboot.target
	trap 'exit 0' TERM
	sleep infinity &
	wait
fi
exit $status
