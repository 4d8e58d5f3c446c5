# Stops the job's process group. A job that has not started can never start afterwards: a file is
# put in the place of its folder.

if [ ! -e "$base/$name" ]; then
    own || return 0
    (set -C; : >"$base/$name") 2>/dev/null
    if [ ! -e "$base/$name" ]; then
        # mkdir prints the reason in a fixed wording; shells differ.
        LC_ALL=C mkdir "$base/.try.$$" && rmdir "$base/.try.$$"
        say failed
        return 0
    fi
fi
look || return 0
case $state in
running*) ;;
lost*) ;;
*) say "$state"; return 0 ;;
esac

# lead.sh checks this mark after it has recorded the leader. So either it sees the mark, or we see the
# leader. If the disk is too full for the mark, no job is about to start.
(: >halt) 2>/dev/null
dot=
left=$grace
while [ "$left" -gt 0 ]; do
    { read -r leader since dot <leader; } 2>/dev/null
    if [ "$dot" = . ]; then break; fi
    look || return 0
    if [ "${state#running}" = "$state" ]; then break; fi
    nap 0.1
    left=$((left - slept))
done
# Whether a process is left in the group. Zombies do not count.
there() {
    kill -0 "-$leader" 2>/dev/null || return 1
    [ -r /proc/self/stat ] || return 0
    for file in /proc/[0-9]*/stat; do
        { read -r line <"$file"; } 2>/dev/null || continue
        set -- ${line##*) }
        if [ "$3" = "$leader" ] && [ "$1" != Z ] && [ "$1" != X ]; then return 0; fi
    done
    return 1
}
# A process with this id and another start time is not the leader.
born "${leader:-0}"
if [ "$dot" != . ] || { [ -n "$birth" ] && [ "$birth" != "$since" ]; } || [ "${state#lost reboot}" != "$state" ]; then
    look || return 0
    say "$state"
    return 0
fi

how=asked
kill -TERM "-$leader" 2>/dev/null
left=$tenths
while there && [ "$left" -gt 0 ]; do
    nap 0.1
    left=$((left - slept))
done
if there; then
    how=forced
    kill -KILL "-$leader" 2>/dev/null
fi
# The runner writes the status. If it shared the group it is gone too, and this script writes it.
left=$grace
while [ "$left" -gt 0 ]; do
    look || return 0
    if [ "${state#running}" = "$state" ] && ! there; then break; fi
    nap 0.1
    left=$((left - slept))
done
if [ "$state" = "lost gone" ]; then
    if [ "$how" = forced ]; then
        finish 137 && ended
    elif [ "$pid" = "$leader" ]; then
        # The start script shared the group, and there was no runner yet.
        finish 143 && ended
    fi
fi
say "stopped $how $state"
