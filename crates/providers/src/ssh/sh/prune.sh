# Deletes jobs that ended long ago, and leftovers.

if [ ! -e "$base" ]; then say pruned; return 0; fi
trusted || return 0
cd "$base" || return 0
find . -name status -mtime +"$days" 2>/dev/null | while read -r status; do
    case $status in
    ./*/job/status) rm -rf "${status%/job/status}" ;;
    esac
done
find . -name '.[ng]*' -mtime +1 -prune -exec rm -rf {} + 2>/dev/null
say pruned
