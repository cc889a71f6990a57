//! New inputs from old ones: bits, bytes, runs and digits changed, pieces taken out, doubled, moved in from another input.

const MAX_LENGTH: usize = 8192;

/// Chance from a seed (SplitMix64).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Below `bound`; 0 where that is 0.
    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % (bound.max(1) as u64)).unwrap_or(0)
    }

    fn byte(&mut self) -> u8 {
        let telling = b"\0\t\n\r \"%&'+,-./0019:;=?AZ[\\]_az{}~\x7f\x80\xc3\xff";
        let any = self.next().to_le_bytes()[0];
        if any.is_multiple_of(4) { self.next().to_le_bytes()[0] } else { telling[self.below(telling.len())] }
    }

    /// A piece of a text of that length, mostly a short one.
    fn piece(&mut self, length: usize) -> std::ops::Range<usize> {
        let start = self.below(length + 1);
        let longest = if self.below(4) == 0 { length } else { 16 };
        let end = (start + self.below(longest + 1)).min(length);
        start..end
    }
}

/// One of the pool, changed one to eight times.
pub(crate) fn mutated(pool: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    let Some(mut input) = pool.get(random.below(pool.len())).cloned() else { return Vec::new() };
    for _ in 0..=random.below(8) {
        change(&mut input, pool, random);
        input.truncate(MAX_LENGTH);
    }
    input
}

fn change(input: &mut Vec<u8>, pool: &[Vec<u8>], random: &mut Random) {
    let at = random.below(input.len());
    match (random.below(9), input.get_mut(at)) {
        (0, Some(byte)) => *byte ^= 1 << random.below(8),
        (1, Some(byte)) => *byte = random.byte(),
        (2, Some(byte)) => *byte = byte.wrapping_add([1, 255, 16, 240][random.below(4)]),
        (3, _) => input.insert(at, random.byte()),
        (4, _) => drop(input.drain(random.piece(input.len()))),
        (5, _) => {
            let piece = input[random.piece(input.len())].to_vec();
            let times = if random.below(8) == 0 { 1 + random.below(200) } else { 1 };
            drop(input.splice(at..at, piece.repeat(times)));
        }
        (6, _) => {
            let byte = random.byte();
            let longest = if random.below(8) == 0 { 300 } else { 8 };
            let run = vec![byte; random.below(longest)];
            drop(input.splice(at..at, run));
        }
        (7, _) => {
            let other = &pool[random.below(pool.len())];
            let piece = other[random.piece(other.len())].to_vec();
            let gone = if random.below(2) == 0 { at..at } else { random.piece(input.len()) };
            drop(input.splice(gone, piece));
        }
        // The head of one, the tail of another.
        (_, _) => {
            let other = &pool[random.below(pool.len())];
            input.truncate(at);
            input.extend_from_slice(&other[random.below(other.len() + 1)..]);
        }
    }
}
