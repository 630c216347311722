//! How many pods of a sort are on each node, kept while pods come and go.
//!
//! Spreading and affinity ask such questions, and the pods of one workload ask the same ones. A
//! question is counted once, over all pods that may answer it; after that, each pod that comes or goes changes the
//! counts, so that a decision does not cost more when there are more pods.

use crate::places::{self, Places, demanded, place};
use crate::pod::PodInfo;
use api::selector::LabelSelector;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// How many questions are kept. Each costs a look at every pod that comes or goes and has one label that
/// it asks for; at every pod of its namespaces if it asks for none.
const QUESTIONS_MAX: usize = 1024;

/// A question about more namespaces than this is one about all, as far as it is kept.
const NAMESPACES_MAX: usize = 16;

/// Pods of these namespaces; `None`: of all.
pub(crate) type Namespaces = Option<BTreeSet<String>>;

/// Which pods are counted: those that fit all of these.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Question {
    pub(crate) all: Vec<(Namespaces, LabelSelector)>,
    /// Leave out those that are being deleted.
    pub(crate) staying: bool,
}

/// Per node, if there are any.
pub(crate) type Counts = HashMap<Arc<str>, usize>;

#[derive(Debug, Default)]
pub(crate) struct Census {
    answers: HashMap<String, Answer>,
    /// Which of them a pod may change.
    places: Places<String>,
    asked: u64,
}

#[derive(Debug)]
struct Answer {
    question: Question,
    counts: Arc<Counts>,
    /// When it was asked last.
    asked: u64,
}

impl Question {
    pub(crate) fn of(namespaces: Namespaces, selector: LabelSelector) -> Question {
        Question { all: vec![(namespaces, selector)], staying: false }
    }

    pub(crate) fn means(&self, pod: &PodInfo) -> bool {
        if self.staying && pod.is_going() {
            return false;
        }
        self.all.iter().all(|(namespaces, selector)| {
            namespaces.as_ref().is_none_or(|some| some.contains(pod.namespace()))
                && selector.matches(|key| pod.label(key))
        })
    }

    /// The namespaces outside of which it means nobody; `None`: there are none, or many.
    pub(crate) fn within(&self) -> Namespaces {
        let some = self.all.iter().filter_map(|(namespaces, _)| namespaces.as_ref());
        some.min_by_key(|some| some.len()).filter(|some| some.len() <= NAMESPACES_MAX).cloned()
    }

    /// One label that all have whom it means.
    pub(crate) fn label(&self) -> Option<(&str, &str)> {
        self.all.iter().find_map(|(_, selector)| demanded(selector))
    }

    /// What its answer is found under: each pod that it means looks at one of them.
    fn places(&self) -> Vec<String> {
        let label = self.label();
        match self.within() {
            Some(namespaces) => namespaces.iter().map(|name| place(Some(name), label)).collect(),
            None => vec![place(None, label)],
        }
    }

    fn text(&self) -> String {
        let nothing = self.all.iter().any(|(_, selector)| selector.is_nothing());
        format!("{:?} {} {nothing}", self.all, self.staying)
    }
}

impl Census {
    /// `pods` are pods on a node, at least all that the question means: counted only if this was not asked
    /// before.
    pub(crate) fn ask<'a>(
        &mut self,
        question: &Question,
        pods: impl FnOnce() -> Box<dyn Iterator<Item = &'a Arc<PodInfo>> + 'a>,
    ) -> Arc<Counts> {
        self.asked += 1;
        let text = question.text();
        if let Some(answer) = self.answers.get_mut(&text) {
            answer.asked = self.asked;
            return answer.counts.clone();
        }
        if self.answers.len() >= QUESTIONS_MAX {
            let oldest = self.answers.iter().min_by_key(|(_, answer)| answer.asked);
            if let Some(oldest) = oldest.map(|(text, _)| text.clone()) {
                self.forget(&oldest);
            }
        }
        let mut counts = Counts::new();
        for pod in pods().filter(|pod| question.means(pod)) {
            if let Some(node) = &pod.node {
                *counts.entry(node.clone()).or_default() += 1;
            }
        }
        let counts = Arc::new(counts);
        let answer =
            Answer { question: question.clone(), counts: counts.clone(), asked: self.asked };
        for place in question.places() {
            self.places.put(place, text.clone());
        }
        self.answers.insert(text, answer);
        counts
    }

    fn forget(&mut self, text: &String) {
        let Some(answer) = self.answers.remove(text) else { return };
        for place in answer.question.places() {
            self.places.take(&place, text);
        }
    }

    pub(crate) fn came(&mut self, pod: &PodInfo) {
        self.change(pod, |counts, node| *counts.entry(node.clone()).or_default() += 1);
    }

    pub(crate) fn went(&mut self, pod: &PodInfo) {
        self.change(pod, |counts, node| {
            if let Some(count) = counts.get_mut(node) {
                *count = count.saturating_sub(1);
                if *count == 0 {
                    counts.remove(node);
                }
            }
        });
    }

    fn change(&mut self, pod: &PodInfo, change: impl Fn(&mut Counts, &Arc<str>)) {
        let Some(node) = &pod.node else {
            return;
        };
        for place in places::all(pod) {
            for text in self.places.at(&place) {
                if let Some(answer) = self.answers.get_mut(text)
                    && answer.question.means(pod)
                {
                    change(Arc::make_mut(&mut answer.counts), node);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::tests::pod_with;
    use proptest::prelude::*;
    use serde_json::json;

    fn question(app: &str) -> Question {
        let selector = json!({ "matchLabels": { "app": app } });
        let namespaces = Some(["default".to_owned()].into());
        Question::of(namespaces, LabelSelector::from_object(&selector).unwrap())
    }

    proptest! {
        /// However pods come and go, what is kept is what a count would find.
        #[test]
        fn what_is_kept_is_what_a_count_would_find(
            steps in prop::collection::vec((0u8..8, 0u8..3, 0u8..2), 0..40),
        ) {
            let mut census = Census::default();
            let mut pods: Vec<Arc<PodInfo>> = Vec::new();
            for (name, node, app) in steps {
                let name = format!("p{name}");
                if let Some(at) = pods.iter().position(|pod| pod.key.name() == name) {
                    census.went(&pods.swap_remove(at));
                } else {
                    let labels = json!({ "app": format!("a{app}") });
                    let pod = pod_with(&name, labels, json!({ "nodeName": format!("n{node}") }));
                    census.came(&pod);
                    pods.push(Arc::new(pod));
                }
                let of = |namespaces: Namespaces, selector: serde_json::Value| {
                    Question::of(namespaces, LabelSelector::from_object(&selector).unwrap())
                };
                let expression = |operator: &str, values: serde_json::Value| json!({ "matchExpressions": [
                    { "key": "app", "operator": operator, "values": values } ] });
                let here = || Some(["default".to_owned()].into());
                let two = Question {
                    all: vec![question("a0").all[0].clone(), of(None, json!({})).all[0].clone()],
                    staying: false,
                };
                for question in [
                    question("a0"),
                    question("a1"),
                    two,
                    of(None, json!({ "matchLabels": { "app": "a1" } })),
                    of(None, json!({})),
                    of(here(), expression("In", json!(["a0", "a1"]))),
                    of(here(), expression("In", json!(["a1"]))),
                    of(here(), expression("NotIn", json!(["a1"]))),
                    of(here(), expression("Exists", json!([]))),
                    of(None, serde_json::Value::Null),
                ] {
                    let kept = census.ask(&question, || Box::new(pods.iter()));
                    let counted = Census::default().ask(&question, || Box::new(pods.iter()));
                    prop_assert_eq!(kept, counted);
                }
            }
        }
    }

    #[test]
    fn old_questions_are_forgotten() {
        let mut census = Census::default();
        for n in 0..QUESTIONS_MAX + 10 {
            census.ask(&question(&format!("a{n}")), || Box::new(std::iter::empty()));
        }
        assert_eq!(census.answers.len(), QUESTIONS_MAX);
        assert_eq!(census.places.count(), QUESTIONS_MAX, "and not looked at any more");
    }

    #[test]
    fn a_question_is_within_its_fewest_namespaces() {
        let names = |count: usize| Some((0..count).map(|n| format!("n{n}")).collect());
        let within = |all: &[Namespaces]| {
            let all = all.iter().map(|some| (some.clone(), LabelSelector::default())).collect();
            Question { all, staying: false }.within()
        };
        assert_eq!(within(&[names(3), None, names(2)]), names(2));
        assert_eq!(within(&[None]), None);
        assert_eq!(within(&[names(NAMESPACES_MAX + 1)]), None);
    }

    /// A pod that comes or goes costs what is asked about its labels, not all that is asked.
    #[test]
    fn a_pod_is_held_against_the_questions_about_its_labels_only() {
        let mut census = Census::default();
        for n in 0..300 {
            census.ask(&question(&format!("a{n}")), || Box::new(std::iter::empty()));
        }
        let pod = pod_with("p", json!({ "app": "a7" }), json!({ "nodeName": "n" }));
        let looked: usize = places::all(&pod).map(|place| census.places.at(&place).count()).sum();
        assert_eq!(looked, 1);
    }

    /// Many workloads that are scheduled together do not make each other forget.
    #[test]
    fn hundreds_of_questions_are_counted_once_each() {
        let mut census = Census::default();
        let counted = std::cell::Cell::new(0);
        for _ in 0..3 {
            for n in 0..300 {
                census.ask(&question(&format!("a{n}")), || {
                    counted.set(counted.get() + 1);
                    Box::new(std::iter::empty())
                });
            }
        }
        assert_eq!(counted.get(), 300);
    }
}
