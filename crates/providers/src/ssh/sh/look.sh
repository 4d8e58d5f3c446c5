# Says what became of the job, and how far its output has come since the caller looked last. Waits for news, but not
# longer than the caller wants.

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
