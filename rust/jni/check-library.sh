#!/bin/sh
# check-library.sh LIBRARY: fails if the library needs anything but libc, a newer glibc than `oldest-glibc` declares, or
# exports anything but what the JVM looks for. Needs objdump and nm.
set -eu
[ $# -eq 1 ] && [ -f "$1" ] || { echo "usage: $0 LIBRARY" >&2; exit 2; }
library=$1
oldest=$(cat "$(dirname "$0")/oldest-glibc")
failed=0
fail() { echo "$library: $*" >&2; failed=1; }

needed=$(objdump -p "$library" | awk '$1 == "NEEDED" { print $2 }')
[ -n "$needed" ] || fail "no NEEDED entry at all: not the library, or objdump failed"
for name in $needed; do
    case $name in
        libc.so.6 | libm.so.6 | libpthread.so.0 | libdl.so.2 | librt.so.1 | ld-linux*.so.*) ;;
        *) fail "needs $name, which is no part of libc" ;;
    esac
done

versions=$(objdump -T "$library" | grep -o 'GLIBC_[0-9][0-9.]*' | sed 's/GLIBC_//' | sort -uV)
newest=$(echo "$versions" | tail -n 1)
if [ "$(printf '%s\n%s\n' "$newest" "$oldest" | sort -V | tail -n 1)" != "$oldest" ]; then
    fail "needs glibc $newest; oldest-glibc declares $oldest:"
    objdump -T "$library" | grep -F "GLIBC_$newest" >&2
fi

exported=$(nm -D --defined-only "$library" | awk '{ print $NF }' | grep -Ev '^(JNI_On(Load|Unload)|Java_[A-Za-z0-9_]+)$' || true)
[ -z "$exported" ] || fail "exports what the JVM does not look for:" $exported
natives=$(nm -D --defined-only "$library" | grep -c ' Java_' || true)
[ "$natives" -gt 0 ] || fail "exports no native method"

[ "$failed" -eq 0 ] || exit 1
echo "$library: needs" $needed "from glibc $newest (declared: $oldest), exports $natives native methods"
