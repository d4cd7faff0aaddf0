// Goldens of tokenizer.json's parts, from Hugging Face's tokenizers (Rust) by its package for Node,
// and of tiktoken's families, from js-tiktoken.
//
// usage: npm install @anush008/tokenizers@0.6.0 js-tiktoken@1.0.21 in some folder; then
//        NODE_PATH=FOLDER/node_modules node make_hugging_face_tokenizer_goldens.js [--write]
//
// Without --write it compares with the committed files and fails where they differ.
//
// splits.json        pre-tokenizers, each with texts and the pre-tokens that it makes of them
// added_tokens.json  tokenizers with added tokens of every kind, each with texts and their ids;
//                    vocabulary and merges are common to all of them
// tiktoken.json      texts and their ids under the ranks of llama3.tiktoken with the patterns of
//                    other families

const fs = require("fs");
const path = require("path");
const { Tokenizer } = require("@anush008/tokenizers");
const { Tiktoken } = require("js-tiktoken/lite");

const kBehaviors = ["Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"];

const split = (regex, behavior = "Isolated", invert = false) => ({
  type: "Split", pattern: { Regex: regex }, behavior, invert });
const splitText = (text, behavior = "Isolated", invert = false) => ({
  type: "Split", pattern: { String: text }, behavior, invert });
const sequence = (...pretokenizers) => ({ type: "Sequence", pretokenizers });
const byteLevel = (use_regex) => ({
  type: "ByteLevel", add_prefix_space: false, trim_offsets: true, use_regex });

const kWords =
  "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|" +
  " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
const kSets = " ?[^(\\s|[.,!?…。，、।۔،])]+";

const kTexts = [
  "it's 12345, é² ½!!?? $x", "a1b22c333 4444", "--a--b c---", "Hello,  World!\n\n 7 \u3000x",
  "…。，、 हिन्दी। اردو۔ f(x)|y", "aab abab bb", " ", "a", "¡olé! «x» ^`~+=<>|", "\t a\r\nb  ",
];

function makeSplits() {
  const cases = [];
  for (const behavior of kBehaviors) {
    for (const invert of [false, true]) {
      for (const regex of ["\\p{N}+", "\\p{N}", "(?=b)", "a*", kWords, "[^\\s]+", "^|-"]) {
        cases.push(split(regex, behavior, invert));
      }
      cases.push(splitText(" ", behavior, invert), splitText("--", behavior, invert));
      cases.push(sequence(split(kSets, behavior, invert), split("\\p{L}", "MergedWithNext")));
    }
    cases.push({ type: "Punctuation", behavior });
    cases.push(sequence({ type: "Punctuation", behavior }, { type: "Digits", individual_digits: true }));
  }
  for (const regex of ["[a[bc]d]+", "[^a[bc]]+", "[a-z&&[^b]]+", "[^a-c&&b-z]+", "[]a]+", "[[^a]b]+",
                       "[a[^b]&&[^c]]+", "[[a-]b]+", "[\\p{L}&&[^\\p{Lu}]]+", "[x[^\\s]]+",
                       "\\p{N}{1,3}+", "(?:a|b){2}+", "é{1,2}+", "[ab]{1,2}?", "a{,2}", "a{,}", "b{a}"]) {
    cases.push(split(regex));
  }
  cases.push({ type: "Digits", individual_digits: false });
  return cases;
}

// Steps behind ByteLevel see its alphabet, in which some bytes are digits.
function makeByteSplits() {
  const digits = { type: "Digits", individual_digits: false };
  return [
    sequence({ type: "Punctuation", behavior: "Contiguous" }, byteLevel(true), digits,
             split("[0-9][0-9][0-9]")),
    sequence(byteLevel(false), split("\\p{L}+", "Removed", true)),
    sequence(digits, byteLevel(true), split("Ġ", "MergedWithNext")),
  ];
}

// Each part of a pipeline stands in a whole file.
function tokenizerOf(parts) {
  return Tokenizer.fromString(JSON.stringify({
    version: "1.0", truncation: null, padding: null, added_tokens: [], normalizer: null,
    pre_tokenizer: null, post_processor: null, decoder: null,
    model: { type: "BPE", dropout: null, unk_token: null, continuing_subword_prefix: null,
             end_of_word_suffix: null, fuse_unk: false, byte_fallback: false, vocab: { a: 0 },
             merges: [] },
    ...parts }));
}

function splits() {
  return [...makeSplits(), ...makeByteSplits()].map((pre_tokenizer) => {
    const tokenizer = tokenizerOf({ pre_tokenizer }).getPreTokenizer();
    const texts = kTexts.map((text) => ({
      text, pieces: tokenizer.preTokenizeString(text).map((piece) => piece[0]) }));
    return { pre_tokenizer, texts };
  });
}

const added = (content, flags = "", normalized = false) => ({
  content, special: !flags.includes("o"), normalized, single_word: flags.includes("w"),
  lstrip: flags.includes("l"), rstrip: flags.includes("r") });

const kAddedSets = [
  [added("<|u|>", "r"), added("<|e|>", "lr"), added("<x>", "l"), added("<n>", "")],
  [added("cat", "wo"), added("<|e|>", "wlr"), added("cat cat", "wo"), added("at", "o")],
  [added("cat", "wo", true), added("the", "lro", true), added("éa", "wo", true), added("<x>", "l", true)],
  [added("<|u|>", "r"), added("\n", "o"), added("  ", "o"), added(" <x>", "lro"), added("xy", "wlr")],
];

const kAddedTexts = [
  "<|u|>\nhello <|e|>\n hello world", "hello world", " <|u|>  <|e|>  <x>  <n>  ", "<|u|> <|u|>\u3000<x>",
  "a <x> <x>b<x>", "<|e|><|e|> <|e|>", "\t<|e|>\u0085\u2028 \u200b<|e|>\ufeff x", "cat", "cat cat cat",
  "concat cats cat cat_ _cat 1cat cat2 cat-cat", "cat\u0301 \u0301cat cat\u200dx Ⓐcat cat½ cat² catⅧ cat٣",
  "灯cat cat灯 cat。cat", "the cat the  the", "éa céa e\u0301a xéa e\u0301a", "<|u|>\n\n  <|u|>  xy  <x>  xy", "xy<x>xy <x> xy",
  "<|e|>cat<|e|>", "cat<|e|>x", "  ", "", "a<x", "<|u|", "the<x>the", " the", "the ", "<s> the</s>  cat",
];

function baseFile(base) {
  const file = base === "bytes" ? "../../fuzz/corpus/tokenizer_json/byte_level.json"
                                : "tokenizer/characters.json";
  const json = JSON.parse(fs.readFileSync(path.join(__dirname, file), "utf8"));
  const pair = (merge) => (typeof merge === "string" ? merge.split(" ") : merge);
  json.model.merges = json.model.merges.map(pair);  // they are all of one form there
  return json;
}

async function addedTokens() {
  const cases = [];
  const pipelines = [
    ["bytes", { normalizer: null, post_processor: null }],
    ["bytes", { normalizer: { type: "NFC" }, post_processor: null,
                pre_tokenizer: sequence(split(kSets), byteLevel(false)) }],
    ["characters", { post_processor: null }],
    ["characters", { post_processor: null, normalizer: null,
                     pre_tokenizer: { type: "Metaspace", replacement: "▁", prepend_scheme: "first",
                                      split: true } }],
  ];
  for (const [base, patch] of pipelines) {
    for (const set of kAddedSets) {
      const file = { ...baseFile(base), ...patch };
      let next = base === "bytes" ? 258 : 627;
      const idOf = (content) => file.model.vocab[content] ?? next++;
      const kept = base === "bytes" ? [] : file.added_tokens.slice(0, 3);
      file.added_tokens = [...kept, ...set.map((token) => ({ id: idOf(token.content), ...token }))];
      const tokenizer = Tokenizer.fromString(JSON.stringify(file));
      const texts = [];
      for (const text of kAddedTexts) {
        const ids = Array.from((await tokenizer.encode(text, null, { addSpecialTokens: false })).getIds());
        texts.push({ text, ids });
      }
      cases.push({ base, patch: { ...patch, added_tokens: file.added_tokens }, texts });
    }
  }
  return cases;
}

// Of the published ranks only the patterns are taken.
const kFamilies = { r50k_base: "gpt2", p50k_base: "p50k_base", cl100k_base: "cl100k_base",
                    o200k_base: "o200k_base" };
const kFamilyTexts = [
  "It's WE'LL they'Re 'S x'd", "HelloWorld helloWorld HELLOworld iPhone", "12345 1 12 x123y 1,000,000",
  "a  b\n\n c \n\n\n  d  ", "http://x/y//\n//z end.\n\n(x)\r\n", "灯塔的光照亮了大海。 été e\u0301te\u0301 Straße ǅ",
];

function tiktoken() {
  const lines = fs.readFileSync(path.join(__dirname, "tokenizer/llama3.tiktoken"), "utf8").trim().split("\n");
  const bpe_ranks = "! 0 " + lines.map((line) => line.split(" ")[0]).join(" ");
  return Object.entries(kFamilies).map(([family, name]) => {
    const { pat_str } = require(`js-tiktoken/ranks/${name}`);
    const encoder = new Tiktoken({ pat_str, special_tokens: {}, bpe_ranks });
    return { family, texts: [...kTexts, ...kFamilyTexts].map((text) => ({
      text, ids: encoder.encode(text, [], []) })) };
  });
}

function compact(list) {
  return "[\n" + list.map((item) => JSON.stringify(item)).join(",\n") + "\n]\n";
}

const kFiles = { "splits.json": splits, "added_tokens.json": addedTokens, "tiktoken.json": tiktoken };

async function main() {
  for (const [name, make] of Object.entries(kFiles)) {
    const file = path.join(__dirname, "tokenizer", name);
    const text = compact(await make());
    if (process.argv.includes("--write")) {
      fs.writeFileSync(file, text);
    } else if (fs.readFileSync(file, "utf8") !== text) {
      console.error(`${file} differs`);
      process.exitCode = 1;
    }
  }
}

main();
