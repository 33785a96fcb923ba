"""The README's worker (docs/example.py), with the certificate that `certs` made for it."""

import functools
import runpy
from pathlib import Path

import muster

FILES = "/etc/muster/worker"
TLS = muster.Tls(ca=f"{FILES}/ca.pem", cert=f"{FILES}/cert.pem", key=f"{FILES}/key.pem")

vars(muster)["Client"] = functools.partial(muster.Client, tls=TLS)
runpy.run_path(str(Path(__file__).with_name("example.py")), run_name="__main__")
