//! What a Llama model needs out of a GGUF file. A file that is cut off, or no GGUF file at all, is an error: every length
//! is checked against the file's.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use super::ModelError;
use super::attention::Heads;
use super::matrix::{BLOCK, Matrix};
use super::quant::Format;

/// Most entries of the metadata, and most tensors.
const MAX_ENTRIES: u64 = 1 << 16;
/// Most dimensions of a tensor.
const MAX_DIMENSIONS: u32 = 4;
/// How deep arrays may lie in arrays.
const MAX_DEPTH: usize = 4;

/// A model file. Weights are read one tensor at a time.
pub(super) struct Gguf {
    reader: BufReader<File>,
    length: u64,
    metadata: HashMap<String, Value>,
    tensors: HashMap<String, Tensor>,
    /// Where the tensors' data begin.
    data: u64,
}

/// A metadata value of those kinds that are of interest here.
#[derive(Debug, Clone, PartialEq)]
enum Value {
    Count(u64),
    Number(f64),
    Text(String),
    /// Only of those arrays that are read here.
    List(Vec<Value>),
    Other,
}

/// The arrays that are read. The others are long and of no use here.
const LISTS: [&str; 2] = ["tokenizer.ggml.tokens", "tokenizer.ggml.token_type"];

#[derive(Debug, Clone)]
struct Tensor {
    /// Length of a row first.
    dimensions: Vec<u64>,
    kind: u32,
    offset: u64,
}

/// The sizes of a model.
#[derive(Debug, Clone)]
pub(super) struct Sizes {
    pub(super) name: Option<String>,
    pub(super) layers: usize,
    pub(super) heads: Heads,
    pub(super) width: usize,
    pub(super) hidden: usize,
    pub(super) context: usize,
    pub(super) epsilon: f32,
    pub(super) rope_base: f32,
    /// Ids that end a generation.
    pub(super) eos: Vec<i32>,
}

fn failed(what: impl Into<String>) -> ModelError {
    ModelError(what.into())
}

impl From<std::io::Error> for ModelError {
    fn from(error: std::io::Error) -> Self {
        match error.kind() {
            std::io::ErrorKind::UnexpectedEof => failed("the file is cut off"),
            _ => failed(error.to_string()),
        }
    }
}

// === Reading the file ===

impl Gguf {
    pub(super) fn open(file: &Path) -> Result<Self, ModelError> {
        let file = File::open(file)?;
        let length = file.metadata()?.len();
        let (metadata, tensors) = (HashMap::new(), HashMap::new());
        let mut gguf = Gguf { reader: BufReader::new(file), length, metadata, tensors, data: 0 };
        let magic = gguf.bytes::<4>()?;
        let version = u32::from_le_bytes(gguf.bytes()?);
        if &magic != b"GGUF" || !(2..=3).contains(&version) {
            return Err(failed("it is no GGUF file of version 2 or 3"));
        }
        let (tensors, entries) = (gguf.long()?, gguf.long()?);
        if tensors.max(entries) > MAX_ENTRIES {
            return Err(failed("the file announces too many entries"));
        }
        for _ in 0..entries {
            let key = gguf.text()?;
            let kind = u32::from_le_bytes(gguf.bytes()?);
            let kept = LISTS.contains(&key.as_str());
            let value = gguf.read_value(kind, kept, 0)?;
            gguf.metadata.insert(key, value);
        }
        for _ in 0..tensors {
            let name = gguf.text()?;
            let tensor = gguf.read_tensor_head()?;
            gguf.tensors.insert(name, tensor);
        }
        let alignment = gguf.count("general.alignment").unwrap_or(32) as u64;
        gguf.data = gguf.reader.stream_position()?.next_multiple_of(alignment);
        Ok(gguf)
    }

    fn bytes<const N: usize>(&mut self) -> Result<[u8; N], ModelError> {
        let mut bytes = [0; N];
        self.reader.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn long(&mut self) -> Result<u64, ModelError> {
        Ok(u64::from_le_bytes(self.bytes()?))
    }

    /// Bytes that the file really has.
    fn many(&mut self, count: u64) -> Result<Vec<u8>, ModelError> {
        let fits = self.reader.stream_position()?.checked_add(count).is_some_and(|end| end <= self.length);
        let count = usize::try_from(count).ok().filter(|_| fits).ok_or_else(|| failed("the file is cut off"))?;
        let mut bytes = vec![0; count];
        self.reader.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn text(&mut self) -> Result<String, ModelError> {
        let length = self.long()?;
        let bytes = self.many(length)?;
        String::from_utf8(bytes).map_err(|_| failed("a text in the file is not UTF-8"))
    }

    /// Reads a value; an array's elements are `kept`, or only read over.
    fn read_value(&mut self, kind: u32, kept: bool, depth: usize) -> Result<Value, ModelError> {
        Ok(match kind {
            0 | 7 => Value::Count(u64::from(self.bytes::<1>()?[0])),
            1 => {
                self.bytes::<1>()?;
                Value::Other
            }
            2 => Value::Count(u64::from(u16::from_le_bytes(self.bytes()?))),
            3 => Value::Count(u64::try_from(i16::from_le_bytes(self.bytes()?)).unwrap_or(u64::MAX)),
            4 => Value::Count(u64::from(u32::from_le_bytes(self.bytes()?))),
            5 => Value::Count(u64::try_from(i32::from_le_bytes(self.bytes()?)).unwrap_or(u64::MAX)),
            6 => Value::Number(f64::from(f32::from_le_bytes(self.bytes()?))),
            8 => Value::Text(self.text()?),
            9 if depth < MAX_DEPTH => {
                let inner = u32::from_le_bytes(self.bytes()?);
                // Each element takes at least a byte, so a wrong count ends at the end of the file.
                let mut elements = Vec::new();
                for _ in 0..self.long()? {
                    let element = self.read_value(inner, kept, depth + 1)?;
                    if kept {
                        elements.push(element);
                    }
                }
                if kept { Value::List(elements) } else { Value::Other }
            }
            10 => Value::Count(self.long()?),
            11 => Value::Count(u64::try_from(i64::from_le_bytes(self.bytes()?)).unwrap_or(u64::MAX)),
            12 => Value::Number(f64::from_le_bytes(self.bytes()?)),
            _ => return Err(failed(format!("a value in the file is of the unknown kind {kind}"))),
        })
    }

    fn read_tensor_head(&mut self) -> Result<Tensor, ModelError> {
        let dimensions = u32::from_le_bytes(self.bytes()?);
        if dimensions > MAX_DIMENSIONS {
            return Err(failed(format!("a tensor has {dimensions} dimensions")));
        }
        let dimensions = (0..dimensions).map(|_| self.long()).collect::<Result<_, _>>()?;
        let kind = u32::from_le_bytes(self.bytes()?);
        Ok(Tensor { dimensions, kind, offset: self.long()? })
    }

    /// A tensor as numbers, and the length of its rows.
    fn read(&mut self, name: &str) -> Result<(Vec<f32>, usize), ModelError> {
        let tensor = self.tensors.get(name).cloned().ok_or_else(|| failed(format!("the file has no tensor {name}")))?;
        let format = Format::of(tensor.kind).ok_or_else(|| {
            failed(format!("{name} is in the number format {}, which is not known here", tensor.kind))
        })?;
        let values = tensor.dimensions.iter().try_fold(1u64, |product, length| product.checked_mul(*length));
        let size = values.and_then(|values| format.size(usize::try_from(values).ok()?));
        let start = self.data.checked_add(tensor.offset);
        let (Some(size), Some(start)) = (size, start) else {
            return Err(failed(format!("the sizes of {name} make no sense")));
        };
        self.reader.seek(SeekFrom::Start(start))?;
        let bytes = self.many(size as u64)?;
        let cols = tensor.dimensions.first().and_then(|cols| usize::try_from(*cols).ok()).unwrap_or(0);
        Ok((format.read(&bytes), cols))
    }
}

// === What the model needs ===

impl Gguf {
    fn value(&self, key: &str) -> Result<&Value, ModelError> {
        self.metadata.get(key).ok_or_else(|| failed(format!("the file does not say {key}")))
    }

    fn count(&self, key: &str) -> Result<usize, ModelError> {
        match self.value(key)? {
            Value::Count(count @ 1..0x100_0000) => Ok(*count as usize),
            other => Err(failed(format!("{key} is {other:?}"))),
        }
    }

    fn number(&self, key: &str) -> Result<f32, ModelError> {
        match self.value(key)? {
            Value::Number(number) => Ok(*number as f32),
            other => Err(failed(format!("{key} is {other:?}"))),
        }
    }

    fn text_of(&self, key: &str) -> Option<&str> {
        match self.metadata.get(key) {
            Some(Value::Text(text)) => Some(text),
            _ => None,
        }
    }

    /// Reads the sizes and checks that this code can compute such a model.
    pub(super) fn sizes(&self) -> Result<Sizes, ModelError> {
        let architecture = self.text_of("general.architecture").unwrap_or("not given");
        if architecture != "llama" {
            return Err(failed(format!("its architecture is {architecture}; this engine computes llama models")));
        }
        let queries = self.count("llama.attention.head_count")?;
        let width = self.count("llama.embedding_length")?;
        let size = self.count("llama.attention.key_length").unwrap_or(width / queries);
        let heads = Heads { queries, keys: self.count("llama.attention.head_count_kv").unwrap_or(queries), size };
        let sizes = Sizes {
            name: self.text_of("general.basename").map(str::to_owned),
            layers: self.count("llama.block_count")?,
            heads,
            width,
            hidden: self.count("llama.feed_forward_length")?,
            context: self.count("llama.context_length")?,
            epsilon: self.number("llama.attention.layer_norm_rms_epsilon")?,
            rope_base: self.number("llama.rope.freq_base").unwrap_or(10_000.0),
            eos: self.eos(),
        };
        let whole = |count: usize| count.is_multiple_of(BLOCK);
        if !(whole(sizes.width)
            && whole(sizes.hidden)
            && whole(heads.query_width())
            && size.is_multiple_of(8)
            && size > 0)
        {
            return Err(failed("its rows are not whole blocks of 32 values"));
        }
        if !queries.is_multiple_of(heads.keys) {
            return Err(failed(format!("{queries} query heads do not share {} key heads evenly", heads.keys)));
        }
        if self.count("llama.rope.dimension_count").is_ok_and(|turned| turned != size) {
            return Err(failed("only a part of each head is turned by its position"));
        }
        Ok(sizes)
    }

    /// End of sequence, of turn, of message: whatever the file names.
    fn eos(&self) -> Vec<i32> {
        let keys = ["tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"];
        let ids = keys.iter().filter_map(|key| match self.metadata.get(*key) {
            Some(Value::Count(id)) => i32::try_from(*id).ok(),
            _ => None,
        });
        let mut ids: Vec<i32> = ids.collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    /// The kind of the file's tokenizer.
    pub(super) fn tokenizer(&self) -> Option<&str> {
        self.text_of("tokenizer.ggml.model")
    }

    /// Its tokens, and what each is when the file says it.
    pub(super) fn tokens(&self) -> Option<Vec<(&str, Option<u64>)>> {
        let list = |key: &str| match self.metadata.get(key) {
            Some(Value::List(elements)) => elements.as_slice(),
            _ => &[],
        };
        let kinds = list(LISTS[1]);
        let texts = list(LISTS[0]).iter().enumerate().map(|(id, token)| match token {
            Value::Text(text) => Some((
                text.as_str(),
                kinds.get(id).and_then(|kind| if let Value::Count(kind) = kind { Some(*kind) } else { None }),
            )),
            _ => None,
        });
        texts.collect()
    }

    pub(super) fn has(&self, tensor: &str) -> bool {
        self.tensors.contains_key(tensor)
    }

    /// A tensor of one row.
    pub(super) fn vector(&mut self, name: &str, length: usize) -> Result<Vec<f32>, ModelError> {
        let (values, _) = self.read(name)?;
        if values.len() != length {
            return Err(failed(format!("{name} has {} values, not {length}", values.len())));
        }
        Ok(values)
    }

    /// Tensors with rows of `cols` values, one below the other, as 8-bit weights whatever they were: the demo model's
    /// 4-bit ones lose their sense in the usual 4-bit arithmetic. `rows` of 0 takes as many as there are.
    pub(super) fn matrix(&mut self, names: &[String], cols: usize, rows: usize) -> Result<Matrix, ModelError> {
        let mut matrix = Matrix::default();
        for name in names {
            let (values, found) = self.read(name)?;
            if found != cols {
                return Err(failed(format!("{name} has rows of {found} values, not {cols}")));
            }
            matrix.append(cols, &values);
        }
        if rows > 0 && matrix.rows() != rows {
            return Err(failed(format!("{} have {} rows, not {rows}", names.join(", "), matrix.rows())));
        }
        Ok(matrix)
    }
}
