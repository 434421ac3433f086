"""Runs in the browser's Python when the bundle is made: what it loads is what the bundle holds, compiled by the same Python."""

import io
import json
import os
import py_compile
import sys
import zipfile

# Parts of the standard library that Pyodide ships and no schedule needs; those that are loaded nevertheless are kept.
UNUSED = [
    "aifc", "antigravity", "asynchat", "asyncore", "bdb", "cProfile", "cgi", "cgitb", "chunk", "cmd", "code",
    "codeop", "colorsys", "compileall", "crypt", "ctypes", "doctest", "email", "ftplib", "getpass", "http",
    "idlelib", "imaplib", "imghdr", "mailbox", "mailcap", "modulefinder", "multiprocessing", "netrc",
    "nntplib", "nturl2path", "optparse", "pdb", "pickletools", "pipes", "plistlib", "poplib", "profile",
    "pstats", "pty", "py_compile", "pyclbr", "pydoc", "pydoc_data", "quopri", "rlcompleter", "sched",
    "shelve", "smtpd", "smtplib", "sndhdr", "socketserver", "sunau", "symtable", "tabnanny", "telnetlib",
    "this", "timeit", "tkinter", "trace", "turtle", "turtledemo", "unittest", "uu", "webbrowser", "wsgiref",
    "xdrlib", "xml", "xmlrpc", "zipapp", "zoneinfo", "_pyio", "_osx_support", "_bootsubprocess", "ensurepip",
    "lib2to3", "distutils",
]  # fmt: skip


# Encodings that are kept: the others are large tables.
ENCODINGS = [
    "__init__", "aliases", "ascii", "cp437", "idna", "latin_1", "raw_unicode_escape", "unicode_escape",
    "utf_16", "utf_32", "utf_8",
]  # fmt: skip


def compiled(path: str, named: str, documented: bool = False) -> bytes:
    """Bytecode, without docstrings where nobody reads them."""
    target = "/tmp/compiled.pyc"
    unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
    py_compile.compile(path, target, named, doraise=True, optimize=0 if documented else 2, invalidation_mode=unchecked)
    return read(target)


def pack(files: dict[str, bytes]) -> bytes:
    head = json.dumps([[path, len(content)] for path, content in files.items()])
    return head.encode() + b"\n" + b"".join(files.values())


def read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def numpy_pack(folder: str) -> bytes:
    """The modules of NumPy that are loaded."""
    files: dict[str, bytes] = {}
    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None) or ""
        if not path.startswith(f"{folder}/numpy/"):
            continue
        place = path.replace(folder, "/packages", 1)
        if path.endswith(".py"):
            files[f"{place}c"] = compiled(path, place, documented=True)  # it reads its own docstrings
        else:
            files[place] = read(path)
    return pack(dict(sorted(files.items())))


def allfold_pack(folder: str) -> bytes:
    """allfold's loaded modules, and the lessons. Algorithms are there as source: the page shows it."""
    files: dict[str, bytes] = {}
    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None) or ""
        if path.startswith(f"{folder}/") and not path.startswith(f"{folder}/numpy/") and path.endswith(".py"):
            place = path.replace(folder, "/packages", 1)
            if "/algorithms/" in path or path == f"{folder}/allfold/__init__.py":
                files[place] = read(path)
            else:
                files[f"{place}c"] = compiled(path, place, documented=True)
    for root, _, names in os.walk(f"{folder}/allfold/learn/lessons"):
        for name in names:
            if not name.endswith(".pyc"):
                path = f"{root}/{name}"
                files[path.replace(folder, "/packages", 1)] = read(path)
    names = "/allfold/__init__.pyi"  # which module has which name: `allfold/__init__.py` reads it
    files[f"/packages{names}"] = read(f"{folder}{names}")
    return pack(dict(sorted(files.items())))


def standard_library(archive: str) -> bytes:
    """The archive with bytecode in place of source, and without what is not needed. Not compressed: the whole bundle is."""
    made = io.BytesIO()
    with zipfile.ZipFile(archive) as given, zipfile.ZipFile(made, "w", zipfile.ZIP_STORED) as kept:
        for name in sorted(given.namelist()):
            top = name.split("/")[0].removesuffix(".py")
            if (top in UNUSED and top not in sys.modules) or name.endswith("/") or "__pycache__" in name:
                continue
            if top == "encodings" and name.removeprefix("encodings/").removesuffix(".py") not in ENCODINGS:
                continue
            content = given.read(name)
            if name.endswith(".py"):
                with open("/tmp/source.py", "wb") as file:
                    file.write(content)
                content, name = compiled("/tmp/source.py", f"/lib/python311.zip/{name}"), f"{name}c"
            # A fixed date: the same sources give the same bytes.
            kept.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), content)
    return made.getvalue()
