# Confirms a job that waits for it, and prints the job's state. `look` has checked and entered the job's
# folder. The mark is one file that is renamed: that needs no space, and only a job that waits has it.

look || return 0
case $state in
running*)
    mv applied confirmed 2>/dev/null
    # A job that an earlier version of Farrier started has its marks where every user can write. Only
    # a mark of this user counts, and with `set -C` the shell neither follows a link nor overwrites.
    if [ ! -h "$earlier.applied" ] && [ -f "$earlier.applied" ] && [ -O "$earlier.applied" ]; then
        (set -C; : >"$earlier.seen") 2>/dev/null
    fi
    ;;
esac
say "$state"
