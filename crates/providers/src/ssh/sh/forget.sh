# Deletes the job, atomically for readers, and leftovers that are older than a day.

if [ ! -e "$base" ]; then say forgotten; return 0; fi
look || return 0
case $state in
running*) say "$state"; return 0 ;;
esac
cd "$base" || return 0
if [ -e "$name" ]; then
    mv "$name" ".gone.$$.$nonce" || { say failed; return 0; }
fi
rm -rf ".gone.$$.$nonce"
find . -name '.[ng]*' -mtime +1 -prune -exec rm -rf {} + 2>/dev/null
say forgotten
