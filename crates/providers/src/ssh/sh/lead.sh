# Records its process group and then becomes the command, which finds the job's folder in
# FARRIER_JOB_FOLDER. Only this user can write there.

if [ "$2" = apart ]; then
    born $$
    fill leader "$$ ${birth:--}" || exit 125
fi
if [ -e halt ]; then exit 143; fi
here=$1
FARRIER_JOB_FOLDER=$here
export FARRIER_JOB_FOLDER
cd "$HOME" 2>/dev/null || cd /
exec sh "$here/command"
