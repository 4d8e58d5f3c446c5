# Gives a stretch of the output, in whole blocks: dd finds a block without reading what is before it.

trusted || return 0
enter || { say gone; return 0; }
say data
dd if="$file" bs="$block" skip="$first" count="$count" 2>/dev/null
