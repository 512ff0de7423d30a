//! An object of one's own kind: dice that everybody sees fall the same way.
//!
//! Start `conclave up`, then: `cargo run -p conclave-client --example dice`. A throw uses chance
//! and the clock. It may run at several clients at once; one result counts, and that is what the
//! thrower is told, and what everybody reads.

use conclave_client::{Cells, Span};
use conclave_client::{Client, Code, Context, Draft, KindError, Model, Object, Reader, Writer};

/// Dice, and who threw what last.
#[derive(Debug, Default)]
struct Dice;

/// What can be done with dice.
enum Op {
    /// Throw one with so many sides.
    Throw(u32),
    /// Tell the last throw.
    Last,
}

/// The only cell: who threw, what, and when.
const LAST: &[u8] = b"last";

impl Model for Dice {
    type Op = Op;
    type Answer = String;

    fn name(&self) -> &'static str {
        "example/dice"
    }

    fn apply(
        &self,
        op: Op,
        draft: &mut Draft<'_>,
        context: &mut Context,
    ) -> Result<String, KindError> {
        let Op::Throw(sides) = op else {
            return told(draft.get(LAST).as_deref());
        };
        let face = context.chance % u64::from(sides.max(1)) + 1;
        let (who, when) = (&context.principal, context.wall.0 / 1_000_000);
        let last = format!("'{who}' threw {face} of {sides} at {when}");
        if !draft.set(LAST, last.as_bytes()) {
            return Err(KindError::TooLarge);
        }
        Ok(last)
    }

    fn reads(&self, op: &Op) -> Option<Vec<Span>> {
        let span = || Span {
            from: LAST.into(),
            to: None,
            limit: 1,
            backwards: false,
        };
        matches!(op, Op::Last).then(|| vec![span()])
    }

    fn answer(&self, _op: &Op, cells: &Cells) -> Result<String, KindError> {
        let cell = cells.first().and_then(|cells| cells.first());
        told(cell.map(|(_, value)| &value[..]))
    }
}

fn told(cell: Option<&[u8]>) -> Result<String, KindError> {
    let text = cell.map(|cell| String::from_utf8_lossy(cell).into_owned());
    text.ok_or(KindError::Empty)
}

impl Code for Op {
    fn write(&self, out: &mut Writer) {
        match self {
            Self::Throw(sides) => out.tag(0).put(sides),
            Self::Last => out.tag(1),
        };
    }

    fn read(input: &mut Reader<'_>) -> Option<Self> {
        match input.tag()? {
            0 => Some(Self::Throw(input.get()?)),
            1 => Some(Self::Last),
            _ => None,
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let endpoints = std::env::var("CONCLAVE_ENDPOINTS")?;
    let client = Client::connect([endpoints]).await?;
    let dice: Object<Dice> = client.object("game/dice");
    println!("{}", dice.call(Op::Throw(6)).await?);
    println!("everybody reads: {}", dice.call(Op::Last).await?);
    client.close().await;
    Ok(())
}
