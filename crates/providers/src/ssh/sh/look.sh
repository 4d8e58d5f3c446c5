# Prints the state of the job and the samples after the caller's offset. Waits for new samples, up to
# the caller's limit.

left=$tenths
while :; do
    look || return 0
    case $state in
    running*) size samples ;;
    *) left=0 ;;
    esac
    if [ "$left" -le 0 ] || [ "$size" -gt "$skip" ]; then break; fi
    nap 0.1
    left=$((left - slept))
done
say "$state"
if [ "$most" -gt 0 ]; then
    say samples
    tail -c "+$((skip + 1))" samples 2>/dev/null | head -c "$most"
fi
