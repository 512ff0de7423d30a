//! `conclave quorum list`.

use clap::Args;
use conclave_quorum::text::{FormInfo, forms};
use serde_json::{Value, json};

use crate::cli::Failure;
use crate::output;

#[derive(Debug, Args)]
pub(crate) struct List {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl List {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        if self.json {
            let forms: Vec<_> = forms().iter().map(as_json).collect();
            return output::json(&json!({ "forms": forms }));
        }
        for form in forms() {
            let (nodes, sizes) = example(form.example);
            let sizes = match (nodes, sizes) {
                (Some(nodes), Some(sizes)) => format!(" has {nodes} nodes, quorums of {sizes}"),
                _ => String::new(),
            };
            let (syntax, kind, what, needs) = (form.syntax, form.kind, form.what, form.needs);
            output::line(format!("{syntax}   [{kind}]\n    {what}"))?;
            output::line(format!("    needs {needs}; {}{sizes}", form.example))?;
        }
        output::line(
            "\nKinds: coterie, any two quorums meet; groups, quorums of different groups meet;\n\
             masking, quorums meet in enough nodes to outvote liars; any, as the arguments say.",
        )
    }
}

fn as_json(form: &FormInfo) -> Value {
    let (nodes, sizes) = example(form.example);
    json!({
        "form": form.name,
        "syntax": form.syntax,
        "what": form.what,
        "needs": form.needs,
        "kind": form.kind.to_string(),
        "example": form.example,
        "example_nodes": nodes,
        "example_sizes": sizes,
    })
}

/// The nodes and quorum sizes of a form's example. A file's example has none.
fn example(text: &str) -> (Option<usize>, Option<String>) {
    let Ok(built) = super::system(text, None) else {
        return (None, None);
    };
    let sizes = built.system.families().into_iter().map(|family| {
        let family = family.as_ref();
        family.primary().unwrap_or(family).sizes()
    });
    let (min, max) = sizes.fold((usize::MAX, 0), |(min, max), sizes| {
        (min.min(sizes.min), max.max(sizes.max))
    });
    (Some(built.system.nodes()), Some(output::span(min, max)))
}
