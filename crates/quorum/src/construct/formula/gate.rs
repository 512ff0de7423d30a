//! The arithmetic of one voting gate.

use crate::Mass;

/// From this much work on, votes among equal inputs are summed as binomial tails.
const ALIKE_WORK_MIN: u64 = 4_000_000;

/// The extreme size of a set of `votes` inputs of one vote each: those of the extreme sizes.
pub(super) fn plain_size(
    votes: usize,
    inputs: &[(usize, u64)],
    below: &[u64],
    better: fn(u64, u64) -> u64,
) -> u64 {
    let mut sizes: Vec<u64> = inputs.iter().map(|(input, _)| below[*input]).collect();
    sizes.sort_unstable();
    if better(1, 2) == 2 {
        sizes.reverse();
    }
    sizes[..votes].iter().sum()
}

/// The number of sets of `votes` inputs of one vote each, all of which count alike.
pub(super) fn plain_count(votes: u64, inputs: &[(usize, u64)], below: &[f64]) -> Option<f64> {
    let each = below[inputs.first()?.0];
    let alike = inputs
        .iter()
        .all(|(input, weight)| *weight == 1 && below[*input] == each);
    alike.then(|| {
        (0..votes).fold(1.0, |count: f64, chosen| {
            let ways = (inputs.len() as u64 - chosen) as f64 / (chosen + 1) as f64;
            // Rounded while it is small enough to be a whole number.
            let next = count * ways;
            if next < 1e15 { next.round() } else { next }
        }) * each.powf(votes as f64)
    })
}

/// Walks the minimal input sets of a gate: inputs come by descending votes, so a set is minimal
/// iff its last input reaches the votes. `join` extends a set's value by an input, `merge` joins
/// the values of two ways.
pub(super) fn sweep<T: Copy>(
    votes: u64,
    inputs: impl Iterator<Item = (T, u64)>,
    empty: T,
    join: impl Fn(T, T) -> T,
    merge: impl Fn(T, T) -> T,
) -> Option<T> {
    let votes = votes as usize;
    // open[s]: the sets of inputs so far that hold s votes and do not reach the gate's votes.
    let mut open: Vec<Option<T>> = vec![None; votes];
    open[0] = Some(empty);
    let mut done: Option<T> = None;
    let either = |a: Option<T>, b: Option<T>| match (a, b) {
        (Some(a), Some(b)) => Some(merge(a, b)),
        (a, b) => a.or(b),
    };
    for (input, weight) in inputs {
        let weight = weight.min(votes as u64) as usize;
        for held in (0..votes).rev() {
            let joined = open[held].map(|value| join(value, input));
            if held + weight >= votes {
                done = either(done, joined);
            } else {
                open[held + weight] = either(open[held + weight], joined);
            }
        }
    }
    done
}

/// The masses of a vote over inputs with the given masses.
pub(super) fn vote_mass(votes: u64, inputs: &[(usize, u64)], below: &[Mass]) -> Mass {
    let work = votes.saturating_mul(inputs.len() as u64);
    let first = below[inputs[0].0];
    let alike = |(input, weight): &(usize, u64)| *weight == 1 && below[*input] == first;
    if work > ALIKE_WORK_MIN && inputs.iter().all(alike) {
        return alike_mass(votes as usize, inputs.len(), first);
    }
    let votes = votes as usize;
    let mut held = vec![0.0; votes + 1];
    held[0] = 1.0;
    for (input, weight) in inputs {
        let Mass { live, dead } = below[*input];
        let weight = (*weight).min(votes as u64) as usize;
        held[votes] *= live + dead;
        for count in (0..votes).rev() {
            let mass = held[count];
            held[count] = mass * dead;
            held[(count + weight).min(votes)] += mass * live;
        }
    }
    Mass {
        live: held[votes],
        dead: held[..votes].iter().sum(),
    }
}

/// The masses of a vote among many inputs of the same mass, as the two tails of a binomial, each
/// summed from its largest term outwards.
pub(super) fn alike_mass(votes: usize, inputs: usize, each: Mass) -> Mass {
    let total = each.live + each.dead;
    if each.live <= 0.0 || each.dead <= 0.0 {
        let all = total.powf(inputs as f64);
        let (live, dead) = if each.live > 0.0 {
            (all, 0.0)
        } else {
            (0.0, all)
        };
        return Mass { live, dead };
    }
    let tail = |from: usize, to: usize| -> f64 {
        let mode = ((inputs + 1) as f64 * each.live / total).floor() as usize;
        let start = mode.clamp(from, to);
        let ln_ways = |count: usize| -> f64 {
            (1..=count)
                .map(|i| (((inputs - count + i) as f64) / i as f64).ln())
                .sum()
        };
        let few = start.min(inputs - start);
        let log =
            ln_ways(few) + start as f64 * each.live.ln() + (inputs - start) as f64 * each.dead.ln();
        let (mut up, mut down, mut sum) = (1.0, 1.0, 1.0);
        for count in start..to {
            up *= (inputs - count) as f64 / (count + 1) as f64 * (each.live / each.dead);
            sum += up;
        }
        for count in (from + 1..=start).rev() {
            down *= count as f64 / (inputs - count + 1) as f64 * (each.dead / each.live);
            sum += down;
        }
        log.exp() * sum
    };
    Mass {
        live: tail(votes, inputs),
        dead: tail(0, votes - 1),
    }
}

/// The cheapest minimal set of weighted inputs that carries the votes; all inputs if no set has
/// a finite cost.
pub(super) fn cheapest_votes(votes: u64, inputs: &[(usize, u64)], cost: &[f64]) -> Vec<usize> {
    let mut inputs = inputs.to_vec();
    inputs.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(&b.0)));
    let votes = votes as usize;
    // best[i][s]: least cost of s votes (capped) from the first i inputs.
    let width = votes + 1;
    let mut best = vec![f64::INFINITY; (inputs.len() + 1) * width];
    best[0] = 0.0;
    for (place, (input, weight)) in inputs.iter().enumerate() {
        let (before, after) = best.split_at_mut((place + 1) * width);
        let (before, after) = (&before[place * width..], &mut after[..width]);
        after.copy_from_slice(before);
        for (held, spent) in before[..votes].iter().enumerate() {
            let reach = held.saturating_add(*weight as usize).min(votes);
            let with = spent + cost[*input];
            if with < after[reach] {
                after[reach] = with;
            }
        }
    }
    if best[inputs.len() * width + votes].is_infinite() {
        return inputs.into_iter().map(|(input, _)| input).collect();
    }
    let mut chosen: Vec<(usize, u64)> = Vec::new();
    let mut held = votes;
    for (place, (input, weight)) in inputs.iter().enumerate().rev() {
        let here = best[(place + 1) * width + held];
        if here == best[place * width + held] {
            continue;
        }
        chosen.push((*input, *weight));
        let before = &best[place * width..(place + 1) * width];
        held = (0..=held)
            .find(|from| {
                (*from + *weight as usize).min(votes) == held
                    && before[*from] + cost[*input] == here
            })
            .unwrap_or(0);
    }
    // Inputs of no cost may be more than needed: leave out what the others make up for.
    let mut total: u64 = chosen.iter().map(|(_, weight)| weight).sum();
    chosen.retain(|(_, weight)| {
        let spare = total - weight >= votes as u64;
        total -= if spare { *weight } else { 0 };
        !spare
    });
    chosen.into_iter().map(|(input, _)| input).collect()
}

/// Shares the use of a gate among its inputs so that the largest load is least: an input of load
/// `v` is used with probability `min(1, level / v)`. Gives that level, the gate's load, and the
/// shares of the certificate.
pub(super) fn balance(
    votes: u64,
    inputs: &[(usize, u64)],
    value: &[f64],
    usage: &mut [f64],
    share: &mut [f64],
) -> f64 {
    let mut order: Vec<usize> = inputs.iter().map(|(input, _)| *input).collect();
    order.sort_by(|a, b| value[*a].total_cmp(&value[*b]).then(a.cmp(b)));
    let mut rest: f64 = order.iter().map(|input| 1.0 / value[*input]).sum();
    let mut open = votes as f64;
    let mut always = 0;
    // The lightest inputs are in every set if even then they carry less than the level.
    while always + 1 < order.len() && open > 1.0 && open / rest > value[order[always]] {
        rest -= 1.0 / value[order[always]];
        open -= 1.0;
        always += 1;
    }
    // Summed again: the subtractions above lose digits.
    rest = order[always..]
        .iter()
        .map(|input| 1.0 / value[*input])
        .sum();
    let level = open / rest;
    for (place, input) in order.iter().enumerate() {
        if place < always {
            usage[*input] = 1.0;
            share[*input] = 0.0;
        } else {
            usage[*input] = (level / value[*input]).min(1.0);
            share[*input] = 1.0 / value[*input] / rest;
        }
    }
    level
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn binomial_tails_agree_with_the_sweep() {
        for (inputs, votes, down) in [(60, 31, 0.1), (60, 1, 0.5), (60, 60, 0.03), (61, 31, 0.97)] {
            let each = Mass {
                live: 1.0 - down,
                dead: down,
            };
            let gate: Vec<(usize, u64)> = (0..inputs).map(|input| (input, 1)).collect();
            let slow = vote_mass(votes as u64, &gate, &vec![each; inputs]);
            let fast = alike_mass(votes, inputs, each);
            assert!(
                (slow.dead / fast.dead - 1.0).abs() < 1e-10,
                "{slow:?} {fast:?}"
            );
            assert!(
                (slow.live / fast.live - 1.0).abs() < 1e-10,
                "{slow:?} {fast:?}"
            );
        }
    }
}
