# SPDX-License-Identifier: Apache-2.0
# A rank that speaks PMI-1 by itself: what MPI libraries do, one line at a time.
#
#   . pmi1.sh; hello; spawn N COMMAND [ARG...]; ask 'cmd=...'; bye
# Each prints the server's answer; ranks that are not asked to say anything end
# without a word, as programs do that are no MPI programs.

ask() {
	printf '%s\n' "$1" >&"$PMI_FD"
	IFS= read -r -u "$PMI_FD" answer
	printf '%s\n' "$answer"
}
quietly() { "$@" >/dev/null; }
hello() { quietly ask 'cmd=init pmi_version=1 pmi_subversion=1'; }
bye() { quietly ask 'cmd=finalize'; }

# block is one command of a spawn: block TOTAL NUMBER NTASKS COMMAND [ARG...]
block() {
	printf 'mcmd=spawn\nnprocs=%s\nexecname=%s\ntotspawns=%s\nspawnssofar=%s\n' "$3" "$4" "$1" "$2"
	shift 4
	i=0
	for arg; do
		i=$((i + 1))
		printf 'arg%s=%s\n' "$i" "$arg"
	done
	printf 'argcnt=%s\npreput_num=1\npreput_key_0=given\npreput_val_0=by the parent\ninfo_num=%s\n' "$i" "$(($([ -z "$WDIR" ]; echo $?) + $([ -z "$HOSTS" ]; echo $?)))"
	[ -z "$HOSTS" ] || printf 'info_key_0=host\ninfo_val_0=%s\n' "$HOSTS"
	[ -z "$WDIR" ] || printf 'info_key_%s=wdir\ninfo_val_%s=%s\n' "$([ -z "$HOSTS" ]; echo $?)" "$([ -z "$HOSTS" ]; echo $?)" "$WDIR"
	printf 'endcmd\n'
}

# The new tasks write where this shell does: a subshell does the redirection.
spawn() {
	quiet_spawn "$@"
	printf '%s\n' "$answer"
}
quiet_spawn() {
	(block 1 1 "$@" >&"$PMI_FD")
	IFS= read -r -u "$PMI_FD" answer
}
