//! Custom resources: defined, created, printed, explained, rejected, deleted.

use crate::harness::each_kubectl;

#[test]
fn a_custom_kind_is_served_like_any_other() {
    each_kubectl(|kubectl| {
        let group = format!("{}.example.com", kubectl.namespace);
        kubectl.ok(&format!(
            r#"kubectl apply -f - <<'END'
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {{name: boats.{group}}}
spec:
  group: {group}
  scope: Namespaced
  names: {{plural: boats, singular: boat, kind: Boat, shortNames: [bo-{ns}], categories: [all]}}
  versions:
  - name: v1
    served: true
    storage: true
    subresources:
      status: {{}}
      scale: {{specReplicasPath: .spec.crew, statusReplicasPath: .status.crew}}
    additionalPrinterColumns:
    - {{name: Crew, type: integer, jsonPath: .spec.crew}}
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            required: [crew]
            properties:
              crew: {{type: integer, minimum: 1, description: How many sail it.}}
              sails: {{type: array, items: {{type: string}}, default: [main]}}
          status: {{type: object, properties: {{crew: {{type: integer}}}}}}
END
            kubectl wait --for=condition=Established crd/boats.{group} --timeout=30s
            cat > boat.yaml <<'END'
apiVersion: {group}/v1
kind: Boat
metadata: {{name: anna}}
spec: {{crew: 3}}
END"#,
            ns = kubectl.namespace,
        ));
        let boat = format!("boat.{group}/anna");
        kubectl.prints("kubectl apply -f boat.yaml", &format!("{boat} created"));
        kubectl.prints("kubectl apply -f boat.yaml", &format!("{boat} unchanged"));
        kubectl.shows(
            &format!("kubectl get bo-{}", kubectl.namespace),
            &["NAME", "CREW", "anna", "3"],
        );
        kubectl.prints(
            &format!("kubectl get boats.{group} anna -o jsonpath='{{.spec.sails}}'"),
            r#"["main"]"#,
        );
        kubectl.shows(
            &format!("kubectl explain boats.spec --api-version={group}/v1"),
            &["crew", "<integer>", "How many sail it."],
        );
        kubectl.fails("sed 's/crew: 3/crew: 0/' boat.yaml | kubectl apply -f -", "spec.crew");
        kubectl.prints(
            "kubectl apply --server-side --force-conflicts -f boat.yaml",
            &format!("{boat} serverside-applied"),
        );
        kubectl.ok(&format!(r#"kubectl patch boats.{group} anna --type=merge -p '{{"spec":{{"sails":["main","jib"]}}}}'"#));
        kubectl.prints(
            &format!("kubectl scale boats.{group} anna --replicas=5"),
            &format!("{boat} scaled"),
        );
        kubectl.prints(
            &format!("kubectl get boats.{group} anna -o jsonpath='{{.spec}}'"),
            r#"{"crew":5,"sails":["main","jib"]}"#,
        );
        kubectl.shows("kubectl get all", &[&boat]);
        kubectl.shows(
            &format!("kubectl delete boats.{group} anna"),
            &[&format!("boat.{group} \"anna\" deleted")],
        );
        kubectl.ok(&format!("kubectl apply -f boat.yaml; kubectl delete crd boats.{group}"));
        kubectl.fails(
            &format!("kubectl get boats.{group}"),
            "the server doesn't have a resource type",
        );
    });
}
