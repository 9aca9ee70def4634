"""Attempts to get out of a sandbox, or to use up the machine.

Each prints `ESCAPED` where it has got what it wanted and can tell. What it cannot tell is looked at from outside: a
secret file, a secret variable, a folder, a listening port, a bystander process. The words in capitals between `@` are
put in by the test.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ATTACKS", "Attack"]


@dataclass(frozen=True)
class Attack:
    """One attempt."""

    name: str
    category: str
    code: str


_SOURCES: dict[str, dict[str, str]] = {
    "files": {
        "open a secret": "print(open('@SECRET@').read())",
        "open as bytes": "print(open('@SECRET@', 'rb').read())",
        "pathlib": "import pathlib\nprint(pathlib.Path('@SECRET@').read_text())",
        "os.open": "import os\nprint(os.read(os.open('@SECRET@', os.O_RDONLY), 100))",
        "io.open_code": "import io\nprint(io.open_code('@SECRET@').read())",
        "relative path": "print(open('../' * 30 + '@SECRET@').read())",
        "symbolic link": "import os\nos.symlink('@SECRET@', 'link')\nprint(open('link').read())",
        "hard link": "import os\nos.link('@SECRET@', 'link')\nprint(open('link').read())",
        "/proc/self/root": "print(open('/proc/self/root@SECRET@').read())",
        "/proc/1/root": "print(open('/proc/1/root@SECRET@').read())",
        "passwd": "print('ESCAPED' if 'root:' in open('/etc/passwd').read() else '')",
        "write outside": "open('@OUTSIDE@/written', 'w').write('x')",
        "append to a secret": "open('@SECRET@', 'a').write('x')",
        "delete a file": "import os\nos.remove('@SECRET@')",
        "delete a folder": "import shutil\nshutil.rmtree('@OUTSIDE@')",
        "rename": "import os\nos.rename('@SECRET@', '@OUTSIDE@/moved')",
        "make a folder": "import os\nos.makedirs('@OUTSIDE@/folder')",
        "change rights": "import os\nos.chmod('@SECRET@', 0o777)\nprint('ESCAPED')",
        "truncate": "import os\nos.truncate('@SECRET@', 0)",
        "read a line by linecache": "import linecache\nprint(linecache.getlines('@SECRET@'))",
        "sqlite": "import sqlite3\nsqlite3.connect('@OUTSIDE@/database').execute('create table t (x)')",
        "list the project": "import os\nprint('ESCAPED' if os.listdir('@PROJECT@') else '')",
        "import the project": "import sys\nsys.path.insert(0, '@PROJECT@')\nimport llm_envs\nprint('ESCAPED')",
        "mount": (
            "import ctypes\nlibc = ctypes.CDLL(None)\n"
            "print('ESCAPED' if libc.mount(b'none', b'/tmp', b'tmpfs', 0, None) == 0 else '')"
        ),
        "chroot": "import os\nos.chroot('/tmp')\nprint('ESCAPED')",
        "a device of the disk": (
            "import os\nos.mknod('disk', 0o60666, os.makedev(254, 0))\nprint('ESCAPED', open('disk', 'rb').read(10))"
        ),
    },
    "network": {
        "connect": "import socket\nsocket.create_connection(('127.0.0.1', @PORT@), 0.2).send(b'x')\nprint('ESCAPED')",
        "urllib": (
            "from urllib.request import urlopen\nprint('ESCAPED', urlopen('http://127.0.0.1:@PORT@/', timeout=0.2))"
        ),
        "http.client": (
            "from http.client import HTTPConnection\nHTTPConnection('127.0.0.1', @PORT@).request('GET', '/')\n"
            "print('ESCAPED')"
        ),
        "datagram": (
            "import socket\ns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
            "s.sendto(b'x', ('8.8.8.8', 53))\nprint('ESCAPED')"
        ),
        "names": "import socket\nprint('ESCAPED', socket.gethostbyname('example.org'))",
        "listen": "import socket\ns = socket.socket()\ns.bind(('', 0))\ns.listen()\nprint('ESCAPED')",
        "unix socket": (
            "import socket\ns = socket.socket(socket.AF_UNIX)\ns.connect('@OUTSIDE@/socket')\nprint('ESCAPED')"
        ),
        "raw socket": "import socket\nsocket.socket(socket.AF_PACKET, socket.SOCK_RAW)\nprint('ESCAPED')",
        "netlink": "import socket\nsocket.socket(socket.AF_NETLINK, socket.SOCK_RAW)\nprint('ESCAPED')",
        "asyncio": "import asyncio\nasyncio.run(asyncio.open_connection('127.0.0.1', @PORT@))\nprint('ESCAPED')",
        "by the C library": ("import ctypes\nprint('ESCAPED' if ctypes.CDLL(None).socket(2, 1, 0) >= 0 else '')"),
    },
    "system": {
        "environment": "import os\nprint(dict(os.environ))",
        "environment of the C library": (
            "import ctypes\nlibc = ctypes.CDLL(None)\nlibc.getenv.restype = ctypes.c_char_p\n"
            "print(libc.getenv(b'@VARIABLE@'))"
        ),
        "/proc/self/environ": "print(open('/proc/self/environ').read())",
        "environments of others": (
            "import glob\nfor name in glob.glob('/proc/*/environ'):\n"
            "    try: print(open(name).read())\n    except OSError: pass"
        ),
        "memory of the parent": (
            "import os\nprint('ESCAPED', open(f'/proc/{os.getppid() or @HOST_PID@}/mem', 'rb').read(1))"
        ),
        "command line of the host": "print('ESCAPED', open('/proc/@HOST_PID@/cmdline').read())",
        "system": "import os\nos.system('touch @OUTSIDE@/executed')",
        "popen": "import os\nprint(os.popen('cat @SECRET@').read())",
        "subprocess": "import subprocess\nprint(subprocess.check_output(['/bin/cat', '@SECRET@']))",
        "exec": "import os\nos.execv('/bin/cat', ['cat', '@SECRET@'])",
        "posix_spawn": "import os\nos.posix_spawn('/bin/touch', ['touch', '@OUTSIDE@/spawned'], {})\nprint('ESCAPED')",
        "pty": "import pty\npty.spawn(['/bin/cat', '@SECRET@'])",
        "setuid": "import os\nos.setuid(0)\nprint('ESCAPED')",
        "raise the limits": (
            "import resource\nresource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)\nprint('ESCAPED')"
        ),
        "raise a soft limit": (
            "import resource\nsoft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)\n"
            "resource.setrlimit(resource.RLIMIT_NOFILE, (hard + 1, hard + 1))\nprint('ESCAPED')"
        ),
        "new namespaces": ("import ctypes\nprint('ESCAPED' if ctypes.CDLL(None).unshare(0x10000000) == 0 else '')"),
        "keyring": "import ctypes\nprint('ESCAPED' if ctypes.CDLL(None).syscall(250, 0, -3, 1) > 0 else '')",
        "shared memory": "import ctypes\nprint('ESCAPED' if ctypes.CDLL(None).shmget(1, 4096, 0o1666) >= 0 else '')",
    },
    "processes": {
        "fork": "import os\npid = os.fork()\nprint('ESCAPED')",
        "fork bomb": "import os\nwhile True: os.fork()",
        "fork bomb that minds no errors": (
            "import os\nwhile True:\n    try:\n        os.fork()\n        print('ESCAPED')\n    except OSError: pass"
        ),
        "multiprocessing": "import multiprocessing\nmultiprocessing.Process(target=print).start()\nprint('ESCAPED')",
        "kill the host": "import os\nos.kill(@HOST_PID@, 9)",
        "kill a bystander": "import os\nos.kill(@BYSTANDER@, 9)",
        "kill the parent": "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)",
        "kill everyone": "import os\nos.kill(-1, 9)",
        "kill the group": "import os\nos.killpg(0, 9)\nos.killpg(@HOST_PID@, 9)",
        "trace the host": (
            "import ctypes\nprint('ESCAPED' if ctypes.CDLL(None).ptrace(16, @HOST_PID@, 0, 0) == 0 else '')"
        ),
        "write to the host's memory": (
            "import ctypes\nprint('ESCAPED' if ctypes.CDLL(None).syscall(310, @HOST_PID@, 0, 0, 0, 0, 0) == 0 else '')"
        ),
        "exit": "import sys\nsys.exit(3)",
        "exit at once": "import os\nos._exit(0)",
        "abort": "import os\nos.abort()",
        "segmentation fault": "import ctypes\nctypes.string_at(0)",
        "ignore signals": (
            "import signal\nfor n in range(1, 64):\n    try: signal.signal(n, signal.SIG_IGN)\n"
            "    except (OSError, ValueError): pass\nwhile True: pass"
        ),
        "stop itself": "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)",
        "have a descriptor signal a bystander": (
            "import fcntl, os, signal, socket\nours, theirs = socket.socketpair()\n"
            "fcntl.fcntl(ours, 10, signal.SIGKILL)\nfcntl.fcntl(ours, 8, @BYSTANDER@)\n"
            "fcntl.fcntl(ours, fcntl.F_SETFL, os.O_ASYNC)\ntheirs.send(b'x')"
        ),
        "outlive the parent": (
            "import ctypes\nprint('ESCAPED' if ctypes.CDLL(None).prctl(1, 0, 0, 0, 0) == 0 else '')"
        ),
        "work at exit": "import atexit\natexit.register(lambda: open('@OUTSIDE@/at-exit', 'w'))\nraise SystemExit",
        "threads without end": (
            "import threading, time\nwhile True:\n"
            "    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()"
        ),
        "a thread left behind": (
            "import threading\ndef spin():\n    while True: pass\nthreading.Thread(target=spin, daemon=True).start()"
        ),
    },
    "memory": {
        "one long text": "a = 'a' * 10**10\nprint('ESCAPED')",
        "one long list": "a = [0] * 10**10\nprint('ESCAPED')",
        "bytes": "a = bytearray(10**10)\nprint('ESCAPED')",
        "a list that grows": "a = []\nwhile True: a.append('x' * 10**6)",
        "a text that doubles": "a = 'x'\nwhile True: a += a",
        "a dictionary that grows": "a = {}\nn = 0\nwhile True:\n    a[n] = str(n) * 1000\n    n += 1",
        "swallowed memory errors": (
            "a = []\nwhile True:\n    try: a.append('x' * 10**6 + str(len(a)))\n    except MemoryError: pass"
        ),
        "width of a format": "print(len(f'{1:1000000000}'), 'ESCAPED')",
        "width of a percent format": "print(len('%1000000000d' % 1), 'ESCAPED')",
        "join": "a = ','.join(['x' * 10**6] * 10**5)\nprint('ESCAPED')",
        "replace": "a = ('x' * 10**5).replace('x', 'y' * 10**6)\nprint('ESCAPED')",
        "compressed zeros": ("import zlib\na = zlib.decompress(zlib.compress(b'0' * 10**7)) * 10**3\nprint('ESCAPED')"),
        "mapped memory": "import mmap\na = mmap.mmap(-1, 10**10)\nprint('ESCAPED')",
        "memory files": ("import os\nf = os.memfd_create('x')\nwhile True: os.write(f, b'x' * 10**6)"),
        "buffers of sockets": (
            "import socket\npairs, held = [], 0\ntry:\n    while True: pairs.append(socket.socketpair())\n"
            "except OSError: pass\nfor one in [one for pair in pairs for one in pair]:\n    one.setblocking(False)\n"
            "    try: one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 30)\n    except OSError: pass\n"
            "    try:\n        while True: held += one.send(bytes(1 << 16))\n    except OSError: pass\n"
            "print('ESCAPED' if held > 64 << 20 else '')"
        ),
        "many files": (
            "for n in range(10**6):\n    with open(f'file{n}', 'w') as f: f.write('x' * 10**5)\nprint('ESCAPED')"
        ),
        "one large file": "f = open('large', 'w')\nfor n in range(10**6): f.write('x' * 10**6)\nprint('ESCAPED')",
        "descriptors": "a = [open('/dev/null') for n in range(10**6)]\nprint('ESCAPED')",
        "a value of 2**60 items": "a = []\nfor n in range(60): a = [a, a]\na",
        "its text": "a = []\nfor n in range(60): a = [a, a]\nprint(len(str(a)), 'ESCAPED')",
    },
    "time": {
        "loop": "while True: pass",
        "loop that minds no exceptions": (
            "while True:\n    try:\n        while True: pass\n    except BaseException: pass"
        ),
        "finally": "try:\n    while True: pass\nfinally:\n    while True: pass",
        "sum": "print(sum(range(10**12)), 'ESCAPED')",
        "product": "import itertools\nfor _ in itertools.product(range(10**6), repeat=3): pass\nprint('ESCAPED')",
        "in C": "print(10**12 in iter(lambda: 1, 2), 'ESCAPED')",
        "sort": "print(len(sorted([n * 7919 % 10**9 for n in range(10**8)])), 'ESCAPED')",
        "sleep": "import time\ntime.sleep(3600)\nwhile True: pass",
        "a lock": "import threading\nlock = threading.Lock()\nlock.acquire()\nlock.acquire()",
        "compare": "a = []\nb = []\nfor n in range(60):\n    a = [a, a]\n    b = [b, b]\nprint(a == b, 'ESCAPED')",
        "hash collisions": "a = {2**61 * n - n: n for n in range(10**6)}\nprint('ESCAPED')",
        "hash of a value that shares its items": "a = ()\nfor n in range(45): a = (a, a)\n{a}",
        "hash collisions of a value": "{(2**61 - 1) * n for n in range(10**5)}",
        "nested generators": (
            "a = iter(int, 1)\nfor n in range(1000): a = map(abs, a)\nfor x in a: pass\nprint('ESCAPED')"
        ),
    },
    "recursion": {
        "function": "def f(n): return f(n + 1)\nf(0)\nprint('ESCAPED')",
        "two functions": "def f(): return g()\ndef g(): return f()\nf()\nprint('ESCAPED')",
        "without a limit": (
            "import sys\nsys.setrecursionlimit(10**9)\ndef f(n): return f(n + 1)\nf(0)\nprint('ESCAPED')"
        ),
        "in C": (
            "import sys\nsys.setrecursionlimit(10**9)\nclass A:\n    def __repr__(self): return repr([self])\n"
            "print(len(repr(A())), 'ESCAPED')"
        ),
        "nested value": "a = []\nfor n in range(10**5): a = [a]\nprint(len(repr(a)))",
        "nested json": "import json\njson.loads('[' * 10**6)\nprint('ESCAPED')",
        "attributes": "class A:\n    def __getattr__(self, name): return getattr(self, name)\nA().x\nprint('ESCAPED')",
    },
    "integers": {
        "tower": "a = 9**9**9\nprint('ESCAPED')",
        "taller tower": "a = 9**9**9**9\nprint('ESCAPED')",
        "factorial": "import math\nprint(math.factorial(10**8) % 7, 'ESCAPED')",
        "squares": "a = 3\nwhile True: a *= a",
        "shift": "a = 1 << 10**12\nprint('ESCAPED')",
        "written out": "a = 10**4_000_000 // 7\nprint(len(str(a)), 'ESCAPED')",
        "read": "print(int('9' * 10**7), 'ESCAPED')",
        "decimal": "import decimal\ndecimal.getcontext().prec = 10**9\nprint(decimal.Decimal(1) / 3, 'ESCAPED')",
        "modular": "print(pow(3, 10**60000, 10**60000 + 1), 'ESCAPED')",
    },
    "output": {
        "print": "while True: print('flood')",
        "long lines": "while True: print('flood' * 10**5)",
        "without line ends": "while True: print('flood', end='')",
        "standard error": "import sys\nwhile True: print('flood', file=sys.stderr)",
        "by the descriptor": "import os\nwhile True: os.write(1, b'flood' * 1000)",
        "long value": "'flood' * 10**6",
        "long exception": "raise ValueError('flood' * 10**6)",
        "long name": "class A(Exception): pass\nA.__name__ = 'flood' * 10**6\nraise A",
        "surrogates": "print('\\ud800' * 1000)\n'\\udfff'",
        "null characters": "print('\\x00' * 100_000)",
        "garbage": "import os\nwhile True: os.write(1, bytes(range(256)) * 100)",
    },
    "introspection": {
        "subclasses": (
            "for c in ().__class__.__mro__[-1].__subclasses__():\n"
            "    if c.__name__ == 'Popen' or c.__name__ == '_wrap_close':\n"
            "        print(c.__init__.__globals__['system']('touch @OUTSIDE@/executed'))\n"
            "        print(open('@SECRET@').read())"
        ),
        "builtins of a function": "print(print.__self__.open('@SECRET@').read())",
        "globals": "f = lambda: 0\nprint(f.__globals__['__builtins__'].open('@SECRET@').read())",
        "frames": (
            "import sys\nf = sys._getframe()\nwhile f:\n    print(f.f_locals, f.f_builtins['open'])\n"
            "    f = f.f_back\nprint(open('@SECRET@').read())"
        ),
        "garbage collector": (
            "import gc\nfor o in gc.get_objects():\n"
            "    if isinstance(o, dict) and '@VARIABLE@' in map(str, o): print('ESCAPED')\n"
            "print(open('@SECRET@').read())"
        ),
        "importlib": "import importlib\nprint(importlib.import_module('os').popen('cat @SECRET@').read())",
        "__import__": "print(__import__('os').popen('cat @SECRET@').read())",
        "eval": "print(eval(\"__import__('os').popen('cat @SECRET@').read()\"))",
        "code objects": (
            "def f(): pass\nf.__code__ = f.__code__.replace(co_code=bytes([0xff] * 100), co_stacksize=10**6)\nf()"
        ),
        "pickle": (
            "import pickle\nclass A:\n    def __reduce__(self): return (open, ('@SECRET@',))\n"
            "print(pickle.loads(pickle.dumps(A())).read())"
        ),
        "machine code": (
            "import ctypes, mmap\nm = mmap.mmap(-1, 4096, prot=7)\nm.write(b'\\x0f\\x0b')\n"
            "ctypes.CFUNCTYPE(None)(ctypes.addressof(ctypes.c_char.from_buffer(m)))()"
        ),
        "fault handler": "import faulthandler\nfaulthandler._sigabrt()\nfaulthandler._stack_overflow()",
        "format": "print('{0.__class__.__mro__[1].__subclasses__}'.format(()))\nprint(open('@SECRET@').read())",
    },
    "regular expressions": {
        "nested repetition": "import re\nprint(re.match('(a+)+$', 'a' * 60 + 'b'))\nwhile True: pass",
        "alternatives": "import re\nprint(re.match('(a|a)*$', 'a' * 60 + 'b'))\nwhile True: pass",
        "references": "import re\nprint(re.match(r'(.*)(.*)(.*)(.*)\\4\\3\\2\\1z', 'x' * 3000))\nwhile True: pass",
        "large counts": (
            "import re\nprint(re.match('((a{1,1000}){1,1000}){1,1000}$', 'a' * 10**5 + 'b'))\nwhile True: pass"
        ),
    },
    "source": {
        "parentheses": "(" * 10_000,
        "unary operators": "-" * 30_000 + "1",
        "additions": "1+" * 20_000 + "1",
        "attributes": "a" + ".a" * 20_000,
        "blocks": "".join(" " * n + "if 1:\n" for n in range(200)) + " " * 200 + "pass",
        "lambdas": "lambda:" * 5_000 + "1",
        "comprehensions": "[" * 190 + "0" + " for x in range(9)]" * 190,
        "null characters": "print(1)\x00print('ESCAPED')",
        "surrogates": "\ud800 = 1",
        "too long": "#" * 1_000_000,
        "compile": (
            "compile('(' * 10**5 + ')' * 10**5, '', 'eval')\ncompile('-' * 10**6 + '1', '', 'eval')\nprint('ESCAPED')"
        ),
        "folded constants": "a = " + "*".join(["(1 << 4000)"] * 400) + "\nwhile True: a *= a",
        "encoding": "# -*- coding: nothing -*-\nprint(open('@SECRET@').read())",
    },
    "protocol": {
        "garbage on every descriptor": (
            "import os\nfor n in range(3, 64):\n    try: os.write(n, b'\\xff' * 1000)\n    except OSError: pass"
        ),
        "frames on every descriptor": (
            'import os, struct\ndata = b\'{"value": "FORGED", "nonce": ""}\'\nfor n in range(3, 64):\n'
            "    try: os.write(n, struct.pack('!I', len(data)) + data)\n    except OSError: pass"
        ),
        "an endless frame": (
            "import os, struct\nfor n in range(3, 64):\n    try:\n        os.write(n, struct.pack('!I', 2**32 - 1))\n"
            "        while True: os.write(n, b'x' * 10**5)\n    except OSError: pass"
        ),
        "nested json": (
            "import os, struct\ndata = b'[' * 20_000\nfor n in range(3, 64):\n"
            "    try: os.write(n, struct.pack('!I', len(data)) + data)\n    except OSError: pass"
        ),
        "close every descriptor": "import os\nos.closerange(0, 1000)",
        "read every descriptor": (
            "import os\nfor n in range(3, 64):\n    try: os.set_blocking(n, False), os.read(n, 10**5)\n"
            "    except OSError: pass"
        ),
        "a reply of its own": (
            "import gc, json, os, struct, sys\nf = sys._getframe()\nnonce = ''\nwhile f:\n"
            "    request = f.f_locals.get('request')\n    nonce = request['nonce'] if request else nonce\n"
            "    f = f.f_back\n"
            "data = json.dumps({'nonce': nonce, 'value': 'own'}).encode()\nfor n in range(3, 64):\n"
            "    try: os.write(n, (struct.pack('!I', len(data)) + data) * 2)\n    except OSError: pass"
        ),
        "our functions replaced": (
            "import builtins, json, sys, traceback\n"
            "for name in ('repr', 'str', 'compile', 'exec', 'eval', 'isinstance'):\n"
            "    setattr(builtins, name, None)\njson.dumps = json.loads = None\ntraceback.TracebackException = None\n"
            "sys.stdout = sys.stderr = None"
        ),
        "an exception that hides": (
            "class A(BaseException):\n    def __str__(self): raise A\n    __repr__ = __str__\nraise A"
        ),
        "a value that lies": "class A:\n    def __repr__(self): return 5\nA()",
        "a value that never ends": "class A:\n    def __repr__(self):\n        while True: pass\nA()",
        "descriptors passed on": (
            "import os, socket\nfor n in range(3, 64):\n    try:\n"
            "        s = socket.socket(fileno=n)\n        socket.send_fds(s, [b'x'], [0, 1, 2] * 50)\n"
            "        s.detach()\n"
            "    except OSError: pass"
        ),
    },
}

ATTACKS: tuple[Attack, ...] = tuple(
    Attack(name, category, code) for category, codes in _SOURCES.items() for name, code in codes.items()
)
