"""Certificates of all faults, made with the program openssl."""

import shutil
import subprocess


class Certificates:
    """NAME.crt and NAME.key in a folder, and roots that sign them."""

    def __init__(self, folder):
        self.folder = folder

    def openssl(self, *arguments):
        subprocess.run(
            ["openssl", *map(str, arguments)], cwd=self.folder, check=True,
            capture_output=True, timeout=60,
        )

    def root(self, name):
        self.openssl(
            "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", 30,
            "-subj", f"/CN={name}", "-keyout", f"{name}.key",
            "-out", f"{name}.crt",
        )

    def issue(self, name, root, days=30, names="DNS:localhost,IP:127.0.0.1"):
        self.openssl(
            "req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}",
            "-keyout", f"{name}.key", "-out", f"{name}.csr",
        )
        (self.folder / "names").write_text(f"subjectAltName={names}")
        self.openssl(
            "x509", "-req", "-in", f"{name}.csr", "-CA", f"{root}.crt", "-CAkey",
            f"{root}.key", "-CAcreateserial", "-days", days, "-extfile", "names",
            "-out", f"{name}.crt",
        )

    def install(self, name, target="served"):
        """Makes the files of `name` those of `target`, key first."""
        for end in ("key", "crt"):
            shutil.copy(self.folder / f"{name}.{end}", self.folder / "aside")
            (self.folder / "aside").rename(self.folder / f"{target}.{end}")
