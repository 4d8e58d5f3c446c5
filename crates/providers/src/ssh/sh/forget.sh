# Removes what is left of the job, in one step for whoever looks, and what others left behind long ago.

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
