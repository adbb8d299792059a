#!/bin/bash
# What the guest runs: installs the programs as `make install` does, then every
# row of jobs (package, folder, test binary, tests, timeout), each as a stream
# of go test's JSON records; or the one command of the file cmd.
cp -a root/. /
systemctl daemon-reload
export STRICT=1 STEPD_GUEST=1 STEPD_BIN=/share/src/bin
if [ -e cmd ]; then
	exec bash ./cmd
fi
status=0
while IFS=$'\t' read -r pkg dir binary tests timeout; do
	cd "/share/src/$dir" || exit 1
	/share/test2json -t -p "$pkg" "/share/$binary" -test.v=test2json -test.paniconexit0 \
		-test.run "$tests" -test.timeout "$timeout" < /dev/null || status=1
done < /share/jobs
exit $status
