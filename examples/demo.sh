#!/bin/bash
# The main job: a private noded, a 4-rank MPICH program under two SPANK
# plugins, and where the launch time went. Called by `make demo`, as root.
set -euo pipefail
bin=$1 built=$2
dir=$(mktemp -d /tmp/stepd-demo.XXXXXX)
noded=
finish() {
	if [ -n "$noded" ]; then kill "$noded" && wait "$noded" || true; fi
	rm -rf "$dir"
}
trap finish EXIT
chmod 755 "$dir"
mkdir -p "$dir/scratch" "$dir/private"

cat > "$dir/plugstack.conf" <<CONF
# Set the niceness of each task, after the fork.
required $built/nice.so nice=5
# A private directory for the job, mounted before the tasks are forked.
required $built/privdir.so base=$dir/scratch target=$dir/private
CONF
cat > "$dir/slurm.conf" <<CONF
ClusterName=demo
NodeName=$(hostname) CPUs=4
PlugStackConfig=$dir/plugstack.conf
CONF

mkfifo "$dir/log"
"$bin/noded" -f "$dir/slurm.conf" --run-dir "$dir/run" --spool-dir "$dir/spool" 2> "$dir/log" &
noded=$!
exec 3< "$dir/log"
until IFS= read -r line <&3 && [[ $line == *"noded: ready"* ]]; do
	[ -n "${line:-}" ] || { echo "demo: noded did not start" >&2; exit 1; }
	echo "$line"
done
cat <&3 > "$dir/noded.log" &
export NODED_SOCKET=$dir/run/noded.sock

echo "== four ranks of an MPI program, under two SPANK plugins"
"$bin/stepctl" run -n 4 --mpi=pmi2 "$built/cpi"
"$bin/stepctl" run -n 4 --mpi=pmi2 "$built/allreduce"
echo "== niceness and private directory, as the plugins set them"
"$bin/stepctl" run -n 2 -l bash -c 'echo "nice $(nice), files in the private directory: $(ls -A '"$dir"'/private | wc -l)"; touch '"$dir"'/private/rank.$SLURM_PROCID'
echo "== on the host, nothing of it is seen"
echo "files: $(ls -A "$dir/private" | wc -l)"
echo "== where the launch time of the MPI step went"
"$bin/stepctl" timeline 1.0
echo "== steps"
"$bin/stepctl" ps --all
