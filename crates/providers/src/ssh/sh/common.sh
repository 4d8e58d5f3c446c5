# What every script on the host knows. Only what a POSIX shell and a small userland have: dash and busybox must do.
# The caller has set: base, the folder of all jobs, or nothing for the usual one; name, the job's file name.

# One line of an answer. Anything else on standard output is noise of somebody's profile.
say() { echo "@farrier $*"; }

# A short pause. Whole seconds are all that POSIX promises. slept = how many tenths of a second it was at least.
nap() {
    slept=1
    sleep "$1" 2>/dev/null || { sleep 1; slept=10; }
}

# birth = when process $1 was started, so that a number that is used again is not taken for the same process.
# Empty when there is no such process, "-" where nobody can tell.
born() {
    birth=
    if [ ! -r /proc/self/stat ]; then
        if kill -0 "$1" 2>/dev/null; then birth=-; fi
        return 0
    fi
    line=
    { read -r line <"/proc/$1/stat"; } 2>/dev/null || return 0
    # The name of the program may hold anything, blanks and brackets too; behind the last bracket are numbers.
    set -- ${line##*) }
    case $1 in Z | X) return 0 ;; esac
    shift 19
    birth=$1
}

alive() {
    born "$1"
    [ -n "$birth" ] && [ "$birth" = "$2" ]
}

# boot = which start of the host this is.
booted() {
    boot=unknown
    { read -r boot </proc/sys/kernel/random/boot_id; } 2>/dev/null || boot=unknown
}

size() {
    set -- $(LC_ALL=C ls -ln "$1" 2>/dev/null)
    size=${5:-0}
}

# Writes over a file that has its place on the disk already, so that a full disk cannot keep us from it. The dot at
# the end says that the line is whole.
fill() { echo "$2 ." 1<>"$1"; }

# Ends the job with the exit status $1 and the sizes that its output will have for ever. All or nothing.
finish() {
    size out; kept_out=$size
    size err; kept_err=$size
    cut_out=0; [ -f out.kept ] || cut_out=1
    cut_err=0; [ -f err.kept ] || cut_err=1
    fill status.new "$1 $kept_out $kept_err $cut_out $cut_err" && mv -f status.new status
}

# Whether the folder of all jobs can be trusted: it lies where others may write, so it must be ours and no link.
trusted() {
    if [ -h "$base" ] || [ ! -d "$base" ] || [ ! -O "$base" ]; then
        say foreign
        return 1
    fi
}

own() {
    (umask 077; LC_ALL=C mkdir -p "$base") || { say failed; return 1; }
    trusted || return 1
    chmod 700 "$base"
}

# Steps into the job's folder. Between its making and its filling are a few milliseconds of somebody else.
enter() {
    for pause in 0.01 0.1 0.3 0.5 1 1 1; do
        if cd "$base/$name/job" 2>/dev/null; then return 0; fi
        nap "$pause"
    done
    return 1
}

# state = ended and what is known of it, or a failure when it has not ended.
ended() {
    code=; dot=
    { read -r code kept_out kept_err cut_out cut_err dot <status; } 2>/dev/null
    [ "$dot" = . ] && state="ended $code $kept_out $kept_err $cut_out $cut_err"
}

# state = what became of the job. Looks for the end once more after nobody was found alive.
look() {
    if [ ! -e "$base" ] && [ ! -h "$base" ]; then state=never; return 0; fi
    trusted || return 1
    if [ -f "$base/$name" ]; then state=barred; return 0; fi
    if [ ! -d "$base/$name" ]; then state=never; return 0; fi
    if ! enter; then state="lost unmade"; return 0; fi
    ended && return 0
    booted
    was=unknown
    { read -r was <boot; } 2>/dev/null
    if [ "$was" != "$boot" ]; then
        size out; kept_out=$size
        size err; kept_err=$size
        state="lost reboot $kept_out $kept_err"
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
