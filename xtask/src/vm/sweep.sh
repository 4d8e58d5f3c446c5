# Ends one run of `cargo xtask test-vm`: sweep.sh NAMESPACE FOLDER. It waits until its standard input ends, which happens when
# the run is over and just as well when it was interrupted or killed; then everything that runs in the namespace is ended by
# its process id, and the namespace and the folder are removed.

trap '' INT TERM HUP
# Nothing is ever written to it.
read -r _

ROUNDS=100
PAUSE_S=0.1

for signal in TERM KILL; do
    for pid in $(ip netns pids "$1"); do
        kill -$signal "$pid" 2>/dev/null
    done
    round=0
    while [ -n "$(ip netns pids "$1")" ] && [ $round -lt $ROUNDS ]; do
        round=$((round + 1))
        sleep $PAUSE_S
    done
done
left=$(ip netns pids "$1")
ip netns del "$1"
rm -rf "$2"
[ -z "$left" ]
