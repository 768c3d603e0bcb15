"""Passes the output of tests under -Xcheck:jni on, and fails if the JVM warned of Weir's native calls.

A warning is followed by the Java stack; its first frame is the native method that made the call. Calls of the JDK's own
libraries are not ours to mend. A warning without a frame comes from a native thread, and such are Weir's.
"""

import re
import sys

WARNING = re.compile(r"WARNING in native method|WARNING: JNI local refs|FATAL ERROR in native method|JNI ERROR")
FRAME = re.compile(r"\s+at ([\w.$]+)")


def main() -> int:
    ours, others, warning = [], 0, None
    for line in sys.stdin:
        sys.stdout.write(line)
        frame = FRAME.match(line)
        if warning is not None:
            if frame is not None and not frame[1].startswith("io.weir."):
                others += 1
            else:
                ours.append(f"{warning} {frame[1] if frame else '(no Java frame)'}")
            warning = None
        if WARNING.search(line):
            warning = line.strip()
    if warning is not None:
        ours.append(warning)
    for found in ours:
        print(f"JNI: {found}")
    print(f"JNI: {len(ours)} warnings of Weir, {others} of others")
    return 1 if ours else 0


if __name__ == "__main__":
    sys.exit(main())
