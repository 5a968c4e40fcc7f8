#!/bin/sh
# found.sh TEXT COMMAND...: passes if the command fails and says TEXT. A gate that finds nothing proves nothing.
text=$1
shift
if said=$("$@" 2>&1); then
    echo "$*: the planted fault went unnoticed" >&2
    exit 1
fi
case $said in
*"$text"*) echo "$1: $text, as planted" ;;
*)
    echo "$*: failed, but not with '$text': $said" >&2
    exit 1
    ;;
esac
