# Cleans up after one run of `cargo xtask test-vm`: cleanup.sh NAMESPACE DIRECTORY. It waits for the end
# of its standard input, which comes when the run has ended, was interrupted or was killed. Then it
# ends every process in the namespace by its process ID, and removes the namespace and the directory.

trap '' INT TERM HUP
# Nothing is ever written to standard input.
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
