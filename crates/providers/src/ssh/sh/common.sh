# Functions of all scripts, for a POSIX shell with a small userland: dash and busybox must be enough.
# The caller sets base, the folder of all jobs (empty for the default), and name, the job's file name.

# One line of a response. A login profile may print other lines.
say() { echo "@farrier $*"; }

# A short pause. POSIX has only whole seconds. slept = the least duration, in tenths of a second.
nap() {
    slept=1
    sleep "$1" 2>/dev/null || { sleep 1; slept=10; }
}

# birth = the start time of process $1, which distinguishes it from a later process with the same id.
# Empty if there is no such process, "-" if the start time cannot be read.
born() {
    birth=
    if [ ! -r /proc/self/stat ]; then
        if kill -0 "$1" 2>/dev/null; then birth=-; fi
        return 0
    fi
    line=
    { read -r line <"/proc/$1/stat"; } 2>/dev/null || return 0
    # The program's name may contain blanks and brackets; after the last bracket are numbers.
    set -- ${line##*) }
    case $1 in Z | X) return 0 ;; esac
    shift 19
    birth=$1
}

alive() {
    born "$1"
    [ -n "$birth" ] && [ "$birth" = "$2" ]
}

# boot = the boot id of the host.
booted() {
    boot=unknown
    { read -r boot </proc/sys/kernel/random/boot_id; } 2>/dev/null || boot=unknown
}

size() {
    set -- $(LC_ALL=C ls -ln "$1" 2>/dev/null)
    size=${5:-0}
}

# Overwrites a file whose space is allocated, so that it works on a full disk. The dot at the end marks
# a complete line.
fill() { echo "$2 ." 1<>"$1"; }

# Ends the job with exit status $1 and the final sizes of its output, atomically.
finish() {
    size out; kept_out=$size
    size err; kept_err=$size
    cut_out=0; [ -f out.kept ] || cut_out=1
    cut_err=0; [ -f err.kept ] || cut_err=1
    fill status.new "$1 $kept_out $kept_err $cut_out $cut_err" && mv -f status.new status
}

# Whether $1 is a folder of this user, and no link.
mine() { [ ! -h "$1" ] && [ -d "$1" ] && [ -O "$1" ]; }

# Whether the folder of all jobs is safe. Every user may write beside it, so nothing in it is believed
# unless it is ours, no link, and no other user can write into it.
trusted() {
    rights=
    if mine "$base"; then rights=$(LC_ALL=C ls -ld "$base" 2>/dev/null); fi
    case $rights in
    d????-??-*) return 0 ;;
    esac
    say foreign
    return 1
}

own() {
    (umask 077; LC_ALL=C mkdir -p "$base") || { say failed; return 1; }
    trusted || return 1
    chmod 700 "$base"
}

# Enters the job's folder. A concurrent start creates it some milliseconds before it fills it.
enter() {
    for pause in 0.01 0.1 0.3 0.5 1 1 1; do
        if cd "$base/$name/job" 2>/dev/null; then return 0; fi
        nap "$pause"
    done
    return 1
}

# state = ended with its details; fails if the job has not ended.
ended() {
    code=; dot=
    { read -r code kept_out kept_err cut_out cut_err dot <status; } 2>/dev/null
    [ "$dot" = . ] && state="ended $code $kept_out $kept_err $cut_out $cut_err"
}

# state = the state of the job. Reads the status again if no process is alive: it may just have ended.
look() {
    if [ ! -e "$base" ] && [ ! -h "$base" ]; then state=never; return 0; fi
    trusted || return 1
    if [ -f "$base/$name" ]; then state=stopped-before-start; return 0; fi
    if [ ! -d "$base/$name" ]; then state=never; return 0; fi
    if ! mine "$base/$name" || [ -h "$base/$name/job" ]; then say foreign; return 1; fi
    if ! enter; then state="lost unmade"; return 0; fi
    ended && return 0
    booted
    was=unknown
    { read -r was <boot; } 2>/dev/null
    if [ "$was" != "$boot" ]; then
        size out; kept_out=$size
        size err; kept_err=$size
        state="lost reboot $kept_out $kept_err"
        # Nothing reads them any more, and the command of a join has a token in it.
        rm -f command join
        return 0
    fi
    { read -r pid since dot <runner; } 2>/dev/null
    if alive "$pid" "$since"; then
        leader=; dot=
        { read -r leader since dot <leader; } 2>/dev/null
        [ "$dot" = . ] || leader=$pid
        state="running $leader"
        return 0
    fi
    ended && return 0
    state="lost gone"
}

if [ -z "$base" ]; then base=/var/tmp/farrier-$(id -u); fi
