// hpcdl tokenize: learns a tokenizer, writes token files, or prints the ids of a text.

#include <nlohmann/json.hpp>

#include "cli/threads_option.h"
#include "cli/verb.h"
#include "hpcdl/core/units.h"
#include "hpcdl/io/unicode.h"
#include "hpcdl/train/trainer.h"

namespace hpcdl::cli {

namespace {

struct TokenizeOptions {
  bool train = false, ids = false, json = false, replace = false;
  int vocab = 4096;
  std::string tokenizer, out, layout = "llmc", key = "text";
  std::vector<std::string> files;
  ThreadsOption threads;
};

int print_ids(const TokenizeOptions& o) {
  auto text = read_stdin();
  if (o.replace) text = io::replace_invalid_utf8(text);
  const auto ids = io::Tokenizer::load(o.tokenizer).encode(text);
  if (o.json) return print_json({{"token_ids", ids}, {"tokens", ids.size()}}), exit_code::kDone;
  std::string line;
  for (const auto id : ids) line += fmt::format("{}{}", line.empty() ? "" : " ", id);
  print_text(line + "\n");
  return exit_code::kDone;
}

void check(const TokenizeOptions& o, const Command& sub) {
  if (!o.train && o.tokenizer.empty())
    fail_usage("tokenize", "give --train to learn a tokenizer, or --tokenizer to use one");
  if (o.train && (!o.tokenizer.empty() || o.ids))
    fail_usage("tokenize", "--train learns a tokenizer: leave out --tokenizer and --ids");
  if (o.ids && !o.files.empty())
    fail_usage("tokenize", "--ids reads standard input: write < {0} instead of {0}", quoted(o.files.front()));
  const auto refuse = [&](bool when, const char* option, const char* why) {
    if (when && sub.given(option)) fail_usage("tokenize", "{} {}", option, why);
  };
  refuse(!o.train, "--vocab", "is for learning a tokenizer: it needs --train");
  refuse(o.train || o.ids, "--layout", "is for token files: leave it out with --train and --ids");
  refuse(o.ids, "--out", "cannot be combined with --ids, which prints the ids");
  refuse(o.ids, "--text-key", "is for .jsonl files, but --ids reads plain text from standard input");
}

int tokenize(TokenizeOptions& o, const Command& sub) {
  check(o, sub);
  if (o.ids) return print_ids(o);
  if (o.out.empty()) fail_usage("tokenize", "give --out");
  if (o.files.empty()) fail_usage("tokenize", "give files or folders of text");
  Pool pool(o.threads.checked("tokenize"));
  const std::vector<std::filesystem::path> paths(o.files.begin(), o.files.end());
  const auto files = data::resolve_text_files(paths);
  const data::TextOptions options{o.key, o.replace};
  const auto start = std::chrono::steady_clock::now();
  Json out = {{"out", o.out}, {"files", files.size()}};
  if (o.train) {
    const auto tokenizer = data::train_tokenizer(files, options, o.vocab, pool, train::tokenize_progress(console()));
    tokenizer.save(o.out);
    out["vocab"] = tokenizer.vocab_size();
  } else {
    const auto tokenizer = io::Tokenizer::load(o.tokenizer);
    const auto counts = data::write_shard(files, options, tokenizer, pool, o.out, data::parse_shard_layout(o.layout),
                                          train::tokenize_progress(console()));
    out["tokens"] = counts.tokens;
    out["documents"] = counts.documents;
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  std::uintmax_t bytes = 0;
  for (const auto& f : files) bytes += std::filesystem::file_size(f);
  out["bytes"] = bytes;
  out["seconds"] = seconds;
  if (o.json) print_json(out);
  else if (o.train)
    say("{} tokens learned from {} in {}: {}", out["vocab"].dump(), format_bytes(static_cast<double>(bytes)),
        format_duration(seconds), o.out);
  else
    say("{} tokens of {} documents, {} in {}: {}", out["tokens"].dump(), out["documents"].dump(),
        format_bytes(static_cast<double>(bytes)), format_duration(seconds), o.out);
  return exit_code::kDone;
}

}  // namespace

void add_tokenize(const Command& program, Run& run) {
  add_verb<TokenizeOptions>(
      program, run, "tokenize", "Learns a byte-level BPE, turns text into token files, or prints ids",
      [](const Command& sub, TokenizeOptions& o) {
        sub.flag("--train", o.train, "Learn a tokenizer from the files");
        sub.option("--vocab", o.vocab, "Size of the vocabulary to learn").range(257, 1 << 24).shows_default();
        sub.option("--tokenizer", o.tokenizer, "tokenizer.json, or a model folder that holds one");
        sub.option("--out", o.out, "tokenizer.json or token file to write");
        sub.option("--layout", o.layout, "Layout of the token file").one_of({"llmc", "nanogpt"}).shows_default();
        sub.option("--text-key", o.key, "Key of the text in lines of .jsonl").shows_default();
        sub.flag("--replace-invalid", o.replace, "Replace bytes that are not UTF-8 instead of stopping");
        sub.flag("--ids", o.ids, "Read text on stdin and print its ids");
        add_threads_option(sub, o.threads);
        sub.flag("--json", o.json, "One JSON object on stdout");
        sub.option("files", o.files, "Files or folders of .txt, .md or .jsonl, also .gz and .zst");
      },
      tokenize);
}

}  // namespace hpcdl::cli
