"""The manifests against the schemas of Kubernetes, offline; a CRD's schema is not among them.

A kustomization has to name every file beside it, since kustomize itself may not be here to miss one.
"""

import pathlib
import sys

import kubernetes_validate
import yaml

VERSION = "1.32"
CUSTOM = {"ServiceMonitor"}
wrong = []



def validate(path):
    for manifest in yaml.safe_load_all(path.read_text()):
        if manifest["kind"] in CUSTOM:
            continue
        try:
            kubernetes_validate.validate(manifest, VERSION, strict=True)
        except kubernetes_validate.ValidationError as error:
            wrong.append(f"{path}: {error.message} at {list(error.path)}")


here = pathlib.Path(__file__).parent
for kustomization in sorted(here.glob("*/kustomization.yaml")):
    folder = kustomization.parent
    named = set(yaml.safe_load(kustomization.read_text())["resources"])
    beside = {path.name for path in folder.glob("*.yaml")} - {"kustomization.yaml"}
    if beside != {name for name in named if not name.startswith("../")}:
        wrong.append(f"{kustomization} does not name the files beside it")
    wrong += [f"{kustomization}: there is no {name}" for name in named if not (folder / name).exists()]
    for name in sorted(beside):
        validate(folder / name)
validate(here.parent.parent / "examples/kubernetes-cronjob/cronjob.yaml")

sys.exit("\n".join(wrong) or 0)
