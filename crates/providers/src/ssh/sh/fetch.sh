# Prints a range of the output in whole blocks: dd seeks to a block without reading the ones before.

trusted || return 0
enter || { say gone; return 0; }
say data
dd if="$file" bs="$block" skip="$first" count="$count" 2>/dev/null
