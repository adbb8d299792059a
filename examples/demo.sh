#!/bin/bash
# The main job: a private noded, MPI programs of four ranks under two SPANK plugins, and
# where the launch time went; then srun under a private Slurm. `make demo` calls it, as
# root, with the folders of the programs and of the examples, and the command for Slurm.
set -euo pipefail
bin=$1 built=$2 slurm=("${@:3}")
dir=$(mktemp -d /tmp/stepd-demo.XXXXXX)
noded=
finish() {
	if [ -n "$noded" ]; then kill "$noded" && wait "$noded" || true; fi
	rm -rf "$dir"
}
trap finish EXIT
chmod 755 "$dir"
mkdir -p "$dir/scratch" "$dir/private"

part() { printf '\n%s\n\n' "$1" | fold -s -w 100 | sed 's/ *$//'; }
# shows prints a command as it could be typed, with the folders shortened, and runs it.
shows() {
	local word line=
	for word; do
		[[ $word == *" "* ]] && word="'$word'"
		line+=" $word"
	done
	printf '$%s\n' "$line" | sed "s|$built/||g; s|$dir|DIR|g"
	"$bin/$1" "${@:2}"
}

cat > "$dir/plugstack.conf" <<CONF
# Sets the niceness of each task, after the fork.
required $built/nice.so nice=5
# Mounts a private directory for the step before the tasks are forked.
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
started=
until IFS= read -r line <&3 && [[ $line == *"noded: ready"* ]]; do
	started+=$line$'\n'
	[ -n "${line:-}" ] || { printf 'demo: noded did not start:\n%s' "$started" >&2; exit 1; }
done
cat <&3 > "$dir/noded.log" &
export NODED_SOCKET=$dir/run/noded.sock

part 'The node daemon runs, with its files in a folder of its own (DIR), and two SPANK plugins are configured.'
shows stepctl plugins
part 'Four ranks of an MPI program find each other through stepd, which serves PMI-2 to them.'
shows stepctl run -n 4 --mpi=pmi2 "$built/cpi"
shows stepctl run -n 4 --mpi=pmi2 "$built/allreduce"
part 'Plugins act on the tasks: nice.so has set their niceness, privdir.so has mounted a private directory for them.'
shows stepctl run -n 2 -l sh -c "echo \"niceness \$(nice), files: \$(ls -A $dir/private | wc -l)\"; touch $dir/private/rank.\$SLURM_PROCID"
part 'Outside the step that directory is empty: the mount has gone with the step.'
echo "files: $(ls -A "$dir/private" | wc -l)"
part 'A step that fails is explained: which task ended, how, and what to do about it.'
shows stepctl run -n 2 sh -c 'test $SLURM_PROCID = 0 || kill -SEGV $$' || true
shows stepctl explain 4.0
part 'The record of the MPI step shows where its launch time went, stage by stage and hook by hook.'
shows stepctl timeline 1.0
part 'All steps of this demonstration, with their final states:'
shows stepctl ps --all
"${slurm[@]}"
cat <<NEXT

What to try next:

  bin/stepctl run -n 2 --mpi=pmi2 ./your_program   your own program; as root, no daemon has to run
  bin/stepctl run --help                           srun's options, and what stepctl adds to them
  docs/slurm.md                                    stepd's step daemon on a cluster with Slurm
  make install                                     noded, its unit, the man pages (docs/install.md)
  examples/plugins                                 the sources of both plugins, to begin your own with
  README.md, docs/HACKING.md                       what this is, and how it works
NEXT
