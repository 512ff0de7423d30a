//! Finite fields of prime-power order.
//!
//! An element of the field of order `p^k` is a polynomial of degree below `k` over the integers
//! modulo `p`, written as the number whose base-`p` digits are its coefficients, the constant
//! term being the lowest digit. Products are taken modulo the first irreducible polynomial in the
//! lexicographic order of its coefficients, constant term first: for 4, 8 and 9 these are x²+x+1,
//! x³+x²+1 and x²+1.

/// A finite field by its addition and multiplication tables. Elements are `0..order()`; 0 and 1
/// are the neutral elements of addition and multiplication.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    order: usize,
    sum: Vec<u16>,
    product: Vec<u16>,
}

impl Field {
    /// The field of this order, or `None` if the order is not a prime power up to
    /// [`ORDER_MAX`].
    pub fn new(order: usize) -> Option<Self> {
        if order > ORDER_MAX {
            return None;
        }
        let (prime, degree) = prime_power(order)?;
        let digits: Vec<Vec<usize>> = (0..order)
            .map(|element| digits(element, prime, degree))
            .collect();
        let modulus = irreducible(prime, degree)?;
        let mut sum = vec![0; order * order];
        let mut product = vec![0; order * order];
        for a in 0..order {
            // The multiples x·0, x·1, .. of a are sums of a·x^i, so products follow from sums.
            let powers = shifts(&digits[a], &modulus, prime);
            for b in 0..order {
                let mut total = vec![0; degree];
                for (place, power) in powers.iter().enumerate() {
                    add_multiple(&mut total, power, digits[b][place], prime);
                }
                product[a * order + b] = number(&total, prime) as u16;
                let mut total = digits[a].clone();
                add_multiple(&mut total, &digits[b], 1, prime);
                sum[a * order + b] = number(&total, prime) as u16;
            }
        }
        Some(Self {
            order,
            sum,
            product,
        })
    }

    /// How many elements the field has.
    pub fn order(&self) -> usize {
        self.order
    }

    /// The sum of two elements.
    pub fn add(&self, a: usize, b: usize) -> usize {
        usize::from(self.sum[a * self.order + b])
    }

    /// The product of two elements.
    pub fn mul(&self, a: usize, b: usize) -> usize {
        usize::from(self.product[a * self.order + b])
    }
}

/// The prime `p` and the exponent `k >= 1` with `n = p^k`, if there are such.
pub fn prime_power(n: usize) -> Option<(usize, usize)> {
    if n < 2 {
        return None;
    }
    let prime = (2..=n.isqrt())
        .find(|factor| n.is_multiple_of(*factor))
        .unwrap_or(n);
    let mut rest = n;
    let mut exponent = 0;
    while rest.is_multiple_of(prime) {
        rest /= prime;
        exponent += 1;
    }
    (rest == 1).then_some((prime, exponent))
}

/// The largest order of a field: the planes over it have more nodes than this library takes.
pub const ORDER_MAX: usize = 512;

fn digits(element: usize, prime: usize, count: usize) -> Vec<usize> {
    let mut rest = element;
    (0..count)
        .map(|_| {
            let digit = rest % prime;
            rest /= prime;
            digit
        })
        .collect()
}

fn number(digits: &[usize], prime: usize) -> usize {
    digits
        .iter()
        .rev()
        .fold(0, |number, digit| number * prime + digit)
}

fn add_multiple(total: &mut [usize], other: &[usize], times: usize, prime: usize) {
    for (digit, other) in total.iter_mut().zip(other) {
        *digit = (*digit + times * other) % prime;
    }
}

/// `element * x^i` modulo the monic polynomial with the given lower coefficients.
fn shifts(element: &[usize], lower: &[usize], prime: usize) -> Vec<Vec<usize>> {
    let mut power = element.to_vec();
    let mut powers = Vec::with_capacity(element.len());
    for _ in 0..element.len() {
        powers.push(power.clone());
        power.insert(0, 0);
        let top = power.pop().unwrap_or(0);
        // x^k = -(lower coefficients).
        add_multiple(&mut power, lower, prime - top, prime);
    }
    powers
}

/// The lower coefficients of the first monic irreducible polynomial of this degree.
fn irreducible(prime: usize, degree: usize) -> Option<Vec<usize>> {
    let candidates = 0..prime.checked_pow(u32::try_from(degree).ok()?)?;
    candidates
        .map(|rank| {
            // Lexicographic, constant term first: the constant term is the highest digit.
            let mut lower = digits(rank, prime, degree);
            lower.reverse();
            lower
        })
        .find(|lower| {
            (1..=degree / 2).all(|smaller| {
                (0..prime.pow(smaller as u32))
                    .all(|rank| !divides(&digits(rank, prime, smaller), lower, prime))
            })
        })
}

/// Whether one monic polynomial divides another, both given by their lower coefficients.
fn divides(divisor: &[usize], polynomial: &[usize], prime: usize) -> bool {
    let mut rest = polynomial.to_vec();
    rest.push(1);
    while rest.len() > divisor.len() {
        let top = rest.pop().unwrap_or(0);
        let place = rest.len() - divisor.len();
        add_multiple(&mut rest[place..], divisor, prime - top, prime);
    }
    rest.iter().all(|digit| *digit == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prime_powers_are_told_from_other_numbers() {
        let orders: Vec<usize> = (0..40).filter(|n| prime_power(*n).is_some()).collect();
        let known = [
            2, 3, 4, 5, 7, 8, 9, 11, 13, 16, 17, 19, 23, 25, 27, 29, 31, 32, 37,
        ];
        assert_eq!(orders, known);
        assert_eq!(prime_power(243), Some((3, 5)));
        assert_eq!(prime_power(1_000_003), Some((1_000_003, 1)));
        assert_eq!(Field::new(6), None);
        assert_eq!(Field::new(521), None);
    }

    #[test]
    fn the_polynomials_are_the_first_irreducible_ones() {
        assert_eq!(irreducible(2, 2), Some(vec![1, 1]));
        assert_eq!(irreducible(2, 3), Some(vec![1, 0, 1]));
        assert_eq!(irreducible(3, 2), Some(vec![1, 0]));
    }

    fn check_pairs(field: &Field) {
        let order = field.order();
        for a in 0..order {
            assert_eq!(field.add(a, 0), a);
            assert_eq!(field.mul(a, 1), a);
            assert_eq!(field.mul(a, 0), 0);
            assert_eq!((0..order).filter(|b| field.add(a, *b) == 0).count(), 1);
            let inverses = (0..order).filter(|b| field.mul(a, *b) == 1).count();
            assert_eq!(inverses, usize::from(a != 0), "inverse of {a} in {order}");
            for b in 0..order {
                assert_eq!(field.add(a, b), field.add(b, a));
                assert_eq!(field.mul(a, b), field.mul(b, a));
            }
        }
    }

    fn check_triple(field: &Field, a: usize, b: usize, c: usize) {
        let (add, mul) = (
            |a, b| Field::add(field, a, b),
            |a, b| Field::mul(field, a, b),
        );
        assert_eq!(add(add(a, b), c), add(a, add(b, c)));
        assert_eq!(mul(mul(a, b), c), mul(a, mul(b, c)));
        assert_eq!(mul(a, add(b, c)), add(mul(a, b), mul(a, c)));
    }

    #[test]
    fn the_axioms_hold() {
        for order in 2..=ORDER_MAX {
            let small = order <= 128 && prime_power(order).is_some();
            let Some(field) = (small || [169, 243, 256].contains(&order))
                .then(|| Field::new(order))
                .flatten()
            else {
                continue;
            };
            check_pairs(&field);
            if order <= 32 {
                for a in 0..order {
                    for b in 0..order {
                        for c in 0..order {
                            check_triple(&field, a, b, c);
                        }
                    }
                }
                continue;
            }
            let mut rng = crate::Prng::new(order as u64);
            for _ in 0..2000 {
                let mut element = || rng.below(order);
                check_triple(&field, element(), element(), element());
            }
        }
    }
}
