#!/usr/bin/env python3
"""What the program consists of.

    materials.py sbom VERSION     a bill of materials, CycloneDX 1.5 as JSON
    materials.py notices          names, licences and notices of the libraries in the program
    materials.py notices PACKAGE  the same of the libraries in another package of the workspace

Both come from Cargo.lock, from what cargo says of the crates that the program is built of with all its features, and
from the lists of the console that is in the program.
"""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = ["--target", "x86_64-unknown-linux-gnu"]
# The console's licences come whole, with the console.
CONSOLE = ROOT / "broker/console"
NOTICES = re.compile(r"^(licen[cs]e|copying|copyright|notice|unlicense)", re.IGNORECASE)


def cargo(*words):
    command = [os.environ.get("CARGO", "cargo"), *words, "--locked"]
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def crates(package="kera"):
    """The crates in the program or another package, with what cargo's metadata says of each; the package itself is first."""
    features = ["--features", "rdma"] if package == "kera" else []
    # Only the tree knows which features, and so which crates, a build of this one package has.
    tree = cargo("tree", "-p", package, *features, "-e", "normal,build", "--prefix", "none", "--format", "{p}", *TARGET)
    names = set()
    for line in tree.splitlines():
        name, version = line.split(" ")[:2]
        names.add((name, version.removeprefix("v")))
    metadata = json.loads(cargo("metadata", "--format-version", "1", "--all-features", "--filter-platform", TARGET[1]))
    found = [one for one in metadata["packages"] if (one["name"], one["version"]) in names]
    found.sort(key=lambda one: (one["name"] != package, one["name"], one["version"]))
    if len(found) != len(names):
        sys.exit(f"materials: of {len(names)} crates {len(found)} are known to cargo metadata")
    links = {node["id"]: [dep["pkg"] for dep in node["deps"]
                          if any(kind["kind"] != "dev" for kind in dep["dep_kinds"])]
             for node in metadata["resolve"]["nodes"]}
    return found, links


def checksums():
    lock = tomllib.loads((ROOT / "Cargo.lock").read_text())
    return {(one["name"], one["version"]): one.get("checksum") for one in lock["package"]}


def console():
    """The libraries in the console: name, version, hash and licence."""
    lock = json.loads((CONSOLE / "package-lock.json").read_text())["packages"]
    wanted = lock[""]["dependencies"]
    return [(name, lock[f"node_modules/{name}"]) for name in sorted(wanted)]


def purl(one):
    return f"pkg:cargo/{one['name']}@{one['version']}"


def licences(text):
    # The slash of old manifests means "or".
    return [{"expression": text.replace("/", " OR ")}] if text else []


def sbom(version):
    found, links = crates()
    sums = checksums()
    references = {one["id"]: purl(one) for one in found}

    def component(one, kind="library"):
        entry = {"type": kind, "bom-ref": purl(one), "name": one["name"], "version": one["version"],
                 "purl": purl(one), "licenses": licences(one["license"])}
        checksum = sums.get((one["name"], one["version"]))
        if checksum:
            entry["hashes"] = [{"alg": "SHA-256", "content": checksum}]
        if one.get("repository"):
            entry["externalReferences"] = [{"type": "vcs", "url": one["repository"]}]
        return entry

    program, *libraries = found
    main = component(program, "application")
    main["version"] = version
    components = [component(one) for one in libraries]
    dependencies = [{"ref": reference, "dependsOn": sorted({references[dep] for dep in links[key] if dep in references})}
                    for key, reference in references.items()]
    scripts = []
    for name, entry in console():
        reference = f"pkg:npm/{name}@{entry['version']}"
        scripts.append(reference)
        components.append({"type": "library", "bom-ref": reference, "name": name, "version": entry["version"],
                           "purl": reference, "licenses": licences(entry.get("license"))})
        dependencies.append({"ref": reference, "dependsOn": []})
    broker = next(one for one in dependencies if one["ref"].startswith("pkg:cargo/kera-broker@"))
    broker["dependsOn"] += scripts
    bill = {"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
            "metadata": {"component": main}, "components": components,
            "dependencies": sorted(dependencies, key=lambda one: one["ref"])}
    print(json.dumps(bill, indent=1))


def notices(package="kera"):
    found, _ = crates(package)
    print("Kera contains these libraries. Each is named with its licence; its own notices follow. Libraries of which no\n"
          "notice follows come without one; the texts of their licences are those of other libraries here.")
    # Many libraries have the same text, to the letter.
    texts = {}
    for one in found:
        if one["source"] is None:
            continue
        folder = Path(one["manifest_path"]).parent
        files = sorted(path for path in folder.iterdir() if path.is_file() and NOTICES.match(path.name))
        names = []
        for path in files:
            text = path.read_text(errors="replace").strip()
            names.append(texts.setdefault(text, len(texts) + 1))
        shown = ", ".join(f"[{name}]" for name in names) or "none"
        print(f"\n{one['name']} {one['version']}, {one['license']}\n  {one.get('repository') or ''}\n  notices: {shown}")
    for text, number in texts.items():
        print(f"\n{'=' * 100}\n[{number}]\n\n{text}")
    if package == "kera":
        print(f"\n{'=' * 100}\n{(CONSOLE / 'public/licenses.txt').read_text()}")


match sys.argv[1:]:
    case ["sbom", version]:
        sbom(version)
    case ["notices"]:
        notices()
    case ["notices", package]:
        notices(package)
    case _:
        sys.exit(__doc__)
