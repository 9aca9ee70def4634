"""Attempts of a shell command to get out of its sandbox, or to use up the machine.

Each prints `ESCAPED` where it has got what it wanted and can tell; in pieces, so that an error that quotes the
command does not say so. The test looks at the rest from outside. It puts in the words between `@`.
"""

from __future__ import annotations

ATTACKS: dict[str, dict[str, str]] = {
    "files": {
        "read a secret": "cat @SECRET@",
        "by a relative path": "cat ../../../../../../..@SECRET@",
        "by a link": "ln -s @SECRET@ link; cat link",
        "by a hard link": "ln @SECRET@ link; cat link",
        "through a process's root": "for p in /proc/[0-9]*; do cat $p/root@SECRET@; done",
        "through a process's folder": "for p in /proc/[0-9]*; do cat $p/cwd@SECRET@; done",
        "through a process's descriptors": "for f in /proc/[0-9]*/fd/*; do cat $f/..@SECRET@; done",
        "append to a secret": "echo x >> @SECRET@",
        "write outside": "echo x > @OUTSIDE@/written",
        "delete outside": "rm -rf @OUTSIDE@/*",
        "accounts": "grep '^root:[^x]' /etc/shadow && echo ESC''APED",
        "write to a system folder": "for f in / /usr /usr/bin /lib /etc; do touch $f/x && echo ESC''APED; done",
        "list the project": "ls @PROJECT@/llm_envs && echo ESC''APED",
        "mount": "mount -t tmpfs none /tmp && echo ESC''APED",
        "remount": "mount -o remount,rw / && echo ESC''APED",
        "chroot": "chroot /tmp && echo ESC''APED",
        "a device": "mknod /tmp/disk b 254 0 && head -c 10 /tmp/disk && echo ESC''APED",
        "settings of the kernel": (
            "for f in kernel/core_pattern vm/drop_caches; do echo 1 > /proc/sys/$f && echo ESC''APED; done"
        ),
        "a setuid program": "cp /bin/bash b; chmod u+s b; ./b -p -c 'id -u' | grep -qx 0 && echo ESC''APED",
        "su and sudo": "su -c id; sudo -n id; (su -c id | grep uid=0) && echo ESC''APED",
    },
    "network": {
        "connect": "exec 5<>/dev/tcp/127.0.0.1/@PORT@ && echo ESC''APED",
        "from Python": (
            "python3 -c \"import socket; socket.create_connection(('127.0.0.1', @PORT@), 1); print('ESC'+'APED')\""
        ),
        "a Unix socket": (
            "python3 -c \"import socket; s = socket.socket(socket.AF_UNIX); s.connect('@OUTSIDE@/socket'); "
            "print('ESC'+'APED')\""
        ),
        "an abstract Unix socket": (
            "python3 -c \"import socket; s = socket.socket(socket.AF_UNIX); s.connect('\\0@ABSTRACT@'); "
            "print('ESC'+'APED')\""
        ),
        "a raw socket": "python3 -c \"import socket; socket.socket(2, socket.SOCK_RAW, 1); print('ESC'+'APED')\"",
        "a packet socket": "python3 -c \"import socket; socket.socket(17, 3, 3); print('ESC'+'APED')\"",
        "the host of a virtual machine": "python3 -c \"import socket; socket.socket(40, 1); print('ESC'+'APED')\"",
        "another interface": (
            "ls /sys/class/net/eth0 && echo ESC''APED; grep -v -e lo: -e '|' /proc/net/dev && echo ESC''APED"
        ),
    },
    "processes": {
        "kill a bystander": "kill -9 @BYSTANDER@; kill -9 @HOST@",
        "kill everyone": "kill -9 -1",
        "kill the supervisor": "kill -9 1; kill -STOP 1; kill -SEGV 1",
        "read the supervisor": "cat /proc/1/environ /proc/1/maps /proc/1/mem && echo ESC''APED",
        "its descriptors": "for f in /proc/1/fd/*; do exec 5<>$f && echo ESC''APED; done",
        "a fork bomb": "f() { f | f & }; f; wait",
        "a loop of processes": "while :; do sleep 100 & done",
        "a detached process": "setsid nohup sleep 987 > /dev/null 2>&1 &",
        "a double fork": "( ( setsid sleep 987 & ) & )",
        "namespaces": "unshare -Ur true && echo ESC''APED; unshare -m true && echo ESC''APED",
        "more rights": "ulimit -u unlimited && ulimit -d unlimited && echo ESC''APED",
        "higher priority": "renice -n -10 $$ && echo ESC''APED",
        "end the shell": "kill -9 $$",
        "replace the shell": "exec sleep 0.01",
        "stop the shell": "kill -STOP $$",
        "ignore all signals": "trap '' INT TERM USR1 HUP; while :; do :; done",
        "close all descriptors": 'for i in 1 2 3 4 5 6 7 8 9 10 11 12 13; do eval "exec $i>&-"; done',
    },
    "resources": {
        "memory of one": "python3 -c \"x = bytearray(1 << 32); print('ESC'+'APED')\"",
        "memory of the shell": "x=aaaaaaaaaaaaaaaa; while :; do x=$x$x; done",
        "memory of many": (
            "for i in 1 2 3 4 5 6 7 8; do python3 -c 'import time; x = bytearray(40 << 20); time.sleep(9)' & done; "
            "wait; echo done"
        ),
        "System V memory": "ipcmk -M 1000000000 && echo ESC''APED",
        "a large file": "head -c 100M /dev/zero > big; [ $(stat -c %s big) -gt 20000000 ] && echo ESC''APED; rm -f big",
        "many large files": (
            "for i in 1 2 3 4 5 6 7 8; do head -c 4M /dev/zero > big$i; done; "
            "[ $(du -sm . | cut -f1) -gt 20 ] && echo ESC''APED; rm -f big*"
        ),
        "shared memory": (
            "head -c 100M /dev/zero > /dev/shm/x; [ $(stat -c %s /dev/shm/x) -gt 20000000 ] && echo ESC''APED; "
            "rm /dev/shm/x"
        ),
        "a flood": "yes",
        "an endless line": "cat /dev/zero",
        "a loop": "while :; do :; done",
        "a sleep": "sleep 1000",
        "functions without end": "f() { while :; do g; done; }; g() { while :; do sleep 0.01; done; }; f",
        "recursion": "f() { f; }; f",
        "reading for ever": "mkfifo fifo; cat fifo",
    },
    "protocol": {
        "a forged end": "printf '\\0%s 0 /\\0' \"$__nonce\"; sleep 0.01",
        "a forged end with nonsense": "printf '\\0%s x\\0' \"$__nonce\"",
        "another number": "__nonce=1",
        "null characters": "head -c 1000 /dev/zero; printf '\\0\\0\\0'",
        "bytes that UTF-8 does not have": "head -c 3000 /dev/urandom",
    },
}
