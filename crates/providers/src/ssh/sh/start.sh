# Starts the job, at most once. Steps that a full disk may fail are done in a temporary folder. Creating
# the job's own folder marks the start, and only one process can do that.

own || return 0
if [ -f "$base/$name" ]; then say stopped-before-start; return 0; fi
if [ -d "$base/$name" ]; then say before; return 0; fi
fresh=$base/.new.$$.$nonce

# Without setsid the job uses the process group that the SSH server created for this command, which is
# ours alone only if we lead it.
together() {
    group=
    if [ -r /proc/self/stat ]; then
        { read -r line <"/proc/$$/stat"; } 2>/dev/null
        set -- ${line##*) }
        group=$3
    else
        group=$(ps -o pgid= -p $$ 2>/dev/null | tr -d ' ')
    fi
    [ "$group" = $$ ]
}

apart=1
if ! command -v setsid >/dev/null 2>&1; then
    apart=
    if ! together; then say groupless; return 0; fi
fi

if ! (LC_ALL=C; export LC_ALL; umask 077; prepare); then
    rm -rf "$fresh"
    say failed
    return 0
fi
if ! (umask 077; LC_ALL=C mkdir "$base/$name"); then
    rm -rf "$fresh"
    if [ -f "$base/$name" ]; then say stopped-before-start
    elif [ -d "$base/$name" ]; then say before
    else say failed
    fi
    return 0
fi
born $$
fill "$fresh/runner" "$$ ${birth:--}"
if [ -z "$apart" ]; then fill "$fresh/leader" "$$ ${birth:--}"; fi
if ! mv "$fresh" "$base/$name/job" || ! cd "$base/$name/job"; then
    rmdir "$base/$name"
    rm -rf "$fresh"
    say failed
    return 0
fi
# The job has started. The mark must survive a loss of power, or the command could start again.
sync "$base/.." "$base" "$base/$name" 2>/dev/null || sync
if [ -n "$apart" ]; then
    setsid sh ./run apart </dev/null >/dev/null 2>&1 &
else
    sh ./run together </dev/null >/dev/null 2>&1 &
fi
runner=$!
born "$runner"
fill runner "$runner ${birth:--}"
say began
