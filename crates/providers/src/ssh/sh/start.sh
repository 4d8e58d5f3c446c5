# Begins the job, once for ever. Everything that may fail for want of space is done in a folder on the side; the mark
# that it has begun is the making of the job's own folder, which only one can do.

if [ -f "$base/$name" ]; then say barred; return 0; fi
if [ -d "$base/$name" ]; then say before; return 0; fi
own || return 0
fresh=$base/.new.$$.$nonce

# The process group that will be the job's, where nothing can make it another one: the one that the SSH server made for
# this very command. It is ours alone only when we lead it.
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
if ! LC_ALL=C mkdir "$base/$name"; then
    rm -rf "$fresh"
    if [ -f "$base/$name" ]; then say barred
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
# From here on it has begun. The mark must outlive a loss of power, or the same command would begin a second time.
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
