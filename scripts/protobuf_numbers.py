#!/usr/bin/env python3
"""Writes crates/api/src/protobuf/numbers.txt: which number each field has in its protobuf message.

Run it when the Kubernetes version changes, with the source of the k8s-pb crate at hand:

    scripts/protobuf_numbers.py ~/.cargo/registry/src/*/k8s-pb-*/src

One line per message of the groups and versions we serve: its name, then `field=number`, or
`field=number:Message` where the field is another message of the same file or named in full.
Only facts are taken: names and numbers.
"""

import pathlib
import re
import sys

OUT = pathlib.Path(__file__).parent.parent / "crates/api/src/protobuf/numbers.txt"
ATTRIBUTE = re.compile(r'#\[prost\(([^\]]*?)tag = "(\d+)"\)\]\s*pub (?:r#)?(\w+):\s*([^,]+(?:<[^;{}]*?>)?),\n', re.S)
SERVED = re.compile(r"\.(v1|v2|resource|intstr|runtime)$")


def package(root, path):
    return ".".join(path.relative_to(root).parent.parts).replace("apiextensions_apiserver", "apiextensions-apiserver").replace("kube_aggregator", "kube-aggregator")


def main():
    root = pathlib.Path(sys.argv[1])
    lines = []
    for path in sorted(root.rglob("mod.rs")):
        name = "io.k8s." + package(root, path)
        if not SERVED.search(name):
            continue
        for message, body in re.findall(r"^pub struct (\w+)(?:<[^>]*>)? \{(.*?)^\}", path.read_text(), re.S | re.M):
            fields = []
            for kind, number, field, rust in ATTRIBUTE.findall(body):
                target = ""
                if "message" in kind and "map" not in kind:
                    target = ":" + re.sub(r"[^\w:]", "", re.sub(r".*<|>.*", "", rust.strip())).split("::")[-1]
                fields.append(f"{field}={number}{target}")
            lines.append(" ".join([f"{name}.{message}", *fields]))
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text("\n".join(lines) + "\n")
    print(f"{len(lines)} messages")


if __name__ == "__main__":
    main()
