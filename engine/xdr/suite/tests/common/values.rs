//! Random encodings of any type of a description, made from its model: neither generated code nor rpcgen
//! has a part in it.

use spinrpc_xdrgen::model::{Arm, Basic, Bound, Field, Kind, Model, Ty};

/// Random bytes, which decide everything. When they are used up, all choices are the smallest.
pub struct Entropy<'e>(pub &'e [u8]);

impl Entropy<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    /// A number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        let number = usize::from(self.byte()) | usize::from(self.byte()) << 8;
        number % end.max(1)
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.byte()).collect()
    }

    /// Mostly few, sometimes as many as allowed.
    fn count(&mut self, bound: &Bound) -> usize {
        let most = bound.value as usize;
        match self.byte() {
            255 if most <= 1100 => most,
            byte => usize::from(byte % 6).min(most),
        }
    }
}

/// Appends encodings to `out`.
pub struct Values<'m, 'e> {
    pub model: &'m Model,
    pub from: Entropy<'e>,
    pub out: Vec<u8>,
}

impl Values<'_, '_> {
    fn word(&mut self, word: u32) {
        self.out.extend(word.to_be_bytes());
    }

    fn padded(&mut self, bytes: &[u8]) {
        self.out.extend(bytes);
        self.out.resize(self.out.len().next_multiple_of(4), 0);
    }

    fn counted(&mut self, bytes: &[u8]) {
        self.word(bytes.len() as u32);
        self.padded(bytes);
    }

    /// A value of `ty`.
    pub fn put(&mut self, ty: &Ty) {
        match ty {
            Ty::Basic(basic) => self.put_basic(*basic),
            Ty::Named(index) => self.put_named(*index),
            Ty::FixedOpaque(bound) => {
                let bytes = self.from.bytes(bound.value as usize);
                self.padded(&bytes);
            }
            Ty::Opaque(bound) | Ty::Placed(bound) => {
                let count = self.from.count(bound);
                let bytes = self.from.bytes(count);
                self.counted(&bytes);
            }
            // In C a string ends with its first zero.
            Ty::ByteText(bound) => {
                let count = self.from.count(bound);
                let bytes: Vec<u8> = self.from.bytes(count).iter().map(|byte| byte | 1).collect();
                self.counted(&bytes);
            }
            Ty::Text(bound) => {
                let count = self.from.count(bound);
                let bytes: Vec<u8> =
                    self.from.bytes(count).iter().map(|byte| (byte & 0x7f) | 1).collect();
                self.counted(&bytes);
            }
            Ty::Fixed(item, bound) => (0..bound.value).for_each(|_| self.put(item)),
            Ty::Counted(item, bound) => {
                let count = self.from.count(bound);
                self.word(count as u32);
                (0..count).for_each(|_| self.put(item));
            }
            Ty::Optional(item) => {
                let is_there = self.from.below(2);
                self.word(is_there as u32);
                (0..is_there).for_each(|_| self.put(item));
            }
            Ty::Branch(index) => self.put(&Ty::Optional(Box::new(Ty::Named(*index)))),
            Ty::List(node) => self.put_list(*node),
            Ty::Chain(node) => {
                self.put_named(*node);
                self.put_list(*node);
            }
        }
    }

    fn put_list(&mut self, node: usize) {
        for _ in 0..self.from.below(4) {
            self.word(1);
            self.put_named(node);
        }
        self.word(0);
    }

    fn put_basic(&mut self, basic: Basic) {
        let bytes = match basic {
            Basic::Int | Basic::UnsignedInt | Basic::Float => 4,
            Basic::Hyper | Basic::UnsignedHyper | Basic::Double => 8,
            Basic::Bool => {
                let word = self.from.below(2);
                return self.word(word as u32);
            }
            Basic::Char => {
                let byte = self.from.byte().cast_signed();
                return self.word(i32::from(byte).cast_unsigned());
            }
            Basic::UnsignedChar => {
                let byte = self.from.byte();
                return self.word(byte.into());
            }
            Basic::Short => {
                let short = (self.from.below(1 << 16) as u16).cast_signed();
                return self.word(i32::from(short).cast_unsigned());
            }
            Basic::UnsignedShort => {
                let short = self.from.below(1 << 16);
                return self.word(short as u32);
            }
        };
        let bytes = self.from.bytes(bytes);
        self.out.extend(bytes);
    }

    fn put_named(&mut self, index: usize) {
        let model = self.model;
        match &model.types[index].kind {
            Kind::Alias(ty) => self.put(ty),
            Kind::Struct { fields, .. } => fields.iter().for_each(|field| self.put(&field.ty)),
            Kind::Enum(enumerators) => {
                let chosen = self.from.below(enumerators.len());
                self.word(enumerators[chosen].value.cast_unsigned());
            }
            Kind::Union { discriminant, arms, default } => {
                self.put_union(discriminant, arms, default.as_ref());
            }
        }
    }

    fn put_union(&mut self, discriminant: &Ty, arms: &[Arm], default: Option<&Option<Field>>) {
        let chosen = self.from.below(arms.len() + usize::from(default.is_some()));
        let (value, body) = match arms.get(chosen) {
            Some(arm) => (arm.value, &arm.body),
            None => match self.other(discriminant, arms) {
                Some(value) => (value, default.unwrap_or(&None)),
                None => (arms[0].value, &arms[0].body),
            },
        };
        self.word(value as u32);
        if let Some(Field { ty, .. }) = body {
            self.put(ty);
        }
    }

    /// A discriminant that has no case of its own.
    fn other(&mut self, discriminant: &Ty, arms: &[Arm]) -> Option<i64> {
        let mut ty = discriminant.clone();
        let all: Vec<i64> = loop {
            match ty {
                Ty::Named(index) => match &self.model.types[index].kind {
                    Kind::Alias(target) => ty = target.clone(),
                    Kind::Enum(found) => {
                        break found.iter().map(|one| i64::from(one.value)).collect();
                    }
                    _ => return None,
                },
                Ty::Basic(Basic::Bool) => break vec![0, 1],
                _ => break (0..40).map(|shift| (1 << (shift % 31)) + 1).collect(),
            }
        };
        let free: Vec<i64> =
            all.into_iter().filter(|value| arms.iter().all(|arm| arm.value != *value)).collect();
        (!free.is_empty()).then(|| free[self.from.below(free.len())])
    }
}

/// There is a string in a value of `ty`.
pub fn has_text(model: &Model, ty: &Ty) -> bool {
    model.any_part(ty, &|part: &Ty| matches!(part, Ty::Text(_) | Ty::ByteText(_)))
}

/// An encoding in which something is wrong, or not: a word is another one, or the end is elsewhere.
pub fn mutant(bytes: &[u8], from: &mut Entropy<'_>) -> Vec<u8> {
    let mut mutant = bytes.to_vec();
    let words = mutant.len() / 4;
    match from.below(4) {
        0 => mutant.truncate(from.below(bytes.len().max(1))),
        1 if words > 0 => {
            let at = 4 * from.below(words);
            let word = [0, 1, 2, 3, 5, 8, 9, 0x7fff_ffff, 0xffff_fff9, 0xffff_ffff][from.below(10)];
            mutant[at..at + 4].copy_from_slice(&u32::to_be_bytes(word));
        }
        2 if words > 0 => {
            let at = from.below(mutant.len());
            mutant[at] ^= 1 << from.below(8);
        }
        _ => mutant.extend([1; 8]),
    }
    mutant
}
