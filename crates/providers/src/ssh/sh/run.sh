# Runs the command, detached from the caller. It ignores the signals that are meant for the command.

trap '' TERM HUP INT
here=$(pwd)

# Keeps the data of the pipe $1 up to the limit. The rest is read and discarded, so that the command
# neither blocks nor fails. The mark for "all kept" is removed at the limit, which works on a full disk.
keep() {
    {
        (ulimit -c 0; ulimit -f "$blocks"; exec cat) >>"$1" 2>/dev/null || { rm -f "$1.kept"; cat >/dev/null; }
    } <"$1.pipe"
}

# Samples the sizes of both outputs. The samples define the order of the log for every reader.
tick() {
    looks=0
    seen='0 0'
    noted=0
    while [ "$noted" -lt "$most" ] && kill -0 $$; do
        if [ "$looks" -lt 25 ]; then nap 0.2; else sleep $((1 + noted / 2000)); fi
        looks=$((looks + 1))
        size out; now=$size
        size err; now="$now $size"
        if [ "$now" != "$seen" ]; then
            printf '\n%s .' "$now" >>samples
            seen=$now
            noted=$((noted + 1))
        fi
    done
}

keep out &
out_writer=$!
keep err &
err_writer=$!
tick &
ticker=$!
if [ "$1" = apart ]; then
    (trap - TERM HUP INT; exec setsid sh ./lead "$here" apart) >out.pipe 2>err.pipe </dev/null &
else
    (trap - TERM HUP INT; exec sh ./lead "$here" together) >out.pipe 2>err.pipe </dev/null &
fi
wait $!
code=$?
# A background process may keep the pipes open; the command has ended anyway.
for pause in 0.01 0.02 0.05 0.1 0.2 0.5 1; do
    kill -0 "$out_writer" 2>/dev/null || kill -0 "$err_writer" 2>/dev/null || break
    nap "$pause"
done
kill -9 "$ticker"
wait "$ticker"
# Before the end is reported: a command may have a secret in it.
rm -f command
finish "$code"
rm -f out.pipe err.pipe
