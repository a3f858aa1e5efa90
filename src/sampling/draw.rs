//! The seeded uniform draw: a pure function of (seed, choice, output index), with no stream to store, rewind or fork.
//! What is drawn from is `sample.rs`'s.
//!
//! The generator is Philox4x32-10 (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011).

const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

/// Names one draw. Two draws with the same key are the same draw.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct DrawKey {
    /// The request's seed.
    pub seed: u64,
    /// The choice among the request's `n`.
    pub choice: u32,
    /// How many tokens the choice generated before this one.
    pub index: u64,
}

impl DrawKey {
    /// A uniform number in [0, 1), a multiple of 2^-53.
    pub fn uniform(&self) -> f64 {
        let key = [self.seed as u32, (self.seed >> 32) as u32];
        let words = philox4x32_10([self.index as u32, (self.index >> 32) as u32, self.choice, 0], key);
        let bits = (u64::from(words[1]) << 32 | u64::from(words[0])) >> 11;
        bits as f64 * (1.0 / (1u64 << 53) as f64)
    }
}

fn philox4x32_10(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..10 {
        let a = u64::from(MULTIPLIERS[0]) * u64::from(counter[0]);
        let b = u64::from(MULTIPLIERS[1]) * u64::from(counter[2]);
        counter = [(b >> 32) as u32 ^ counter[1] ^ key[0], b as u32, (a >> 32) as u32 ^ counter[3] ^ key[1], a as u32];
        key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
    }
    counter
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known answers published with the generator's reference implementation (Random123, kat_vectors).
    #[test]
    fn known_answers() {
        let cases = [
            ([0; 4], [0; 2], [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]),
            ([u32::MAX; 4], [u32::MAX; 2], [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]),
            (
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0],
                [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
            ),
        ];
        for (counter, key, expected) in cases {
            assert_eq!(philox4x32_10(counter, key), expected);
        }
    }

    /// Pearson's statistic over 64 cells along each axis of the key: 63 degrees of freedom, 99.99 % of true uniforms below 110.
    #[test]
    fn uniform_along_every_axis() {
        const CELLS: usize = 64;
        const DRAWS: u64 = 64_000;
        let axes: [fn(u64) -> DrawKey; 3] = [
            |i| DrawKey { seed: i, choice: 0, index: 0 },
            |i| DrawKey { seed: 7, choice: i as u32, index: 3 },
            |i| DrawKey { seed: 1 << 40, choice: 1, index: i },
        ];
        for (axis, key) in axes.iter().enumerate() {
            let mut cells = [0u32; CELLS];
            for i in 0..DRAWS {
                let u = key(i).uniform();
                assert!((0.0..1.0).contains(&u));
                cells[(u * CELLS as f64) as usize] += 1;
            }
            let expected = DRAWS as f64 / CELLS as f64;
            let chi2: f64 = cells.iter().map(|&n| (f64::from(n) - expected).powi(2) / expected).sum();
            assert!((20.0..110.0).contains(&chi2), "axis {axis}: chi2 {chi2}");
        }
    }
}
