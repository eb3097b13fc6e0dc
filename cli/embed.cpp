// hpcdl embed: vectors of texts.

#include <nlohmann/json.hpp>
#include <optional>

#include "cli/dtype_option.h"
#include "cli/threads_option.h"
#include "cli/verb.h"
#include "hpcdl/core/clock.h"
#include "hpcdl/io/atomic_file.h"
#include "hpcdl/io/file.h"
#include "hpcdl/io/json.h"
#include "hpcdl/serve/embeddings.h"
#include "hpcdl/serve/loaded_encoder.h"

namespace hpcdl::cli {

namespace {

struct EmbedOptions {
  std::string model, input, out, device = "cpu";
  std::vector<std::string> texts;
  std::int64_t dimensions = 0;  // 0: all
  bool truncate = false, json = false;
  DtypeOption dtype;
  ThreadsOption threads;
};

std::string text_of(const std::string& line, const std::string& where) {
  const auto json = io::parse_json(line, where);
  if (json.is_string()) return json.get<std::string>();
  return io::JsonObject(json, where).need<std::string>("text");
}

/// The texts of JSON lines.
std::vector<std::string> read_texts(const std::string& file) {
  const bool piped = file == "-";
  const auto all = piped ? read_stdin() : io::read_file(file);
  std::vector<std::string> texts;
  std::size_t number = 0;
  for (std::size_t at = 0; at < all.size();) {
    const auto end = std::min(all.find('\n', at), all.size());
    const auto line = all.substr(at, end - at);
    at = end + 1, ++number;
    if (line.find_first_not_of(" \t\r") == line.npos) continue;
    texts.push_back(text_of(line, fmt::format("{}, line {}", piped ? "standard input" : file, number)));
  }
  require(!texts.empty(), "embed", "{} holds no text: expected lines such as {{\"text\": \"Hello\"}}",
          piped ? "standard input" : file);
  return texts;
}

int embed(EmbedOptions& o) {
  if (o.texts.empty() == o.input.empty()) fail_usage("embed", "give either texts, or --input with a file of them");
  if (o.out.empty() && o.json) fail_usage("embed", "with --json the vectors need a file of their own: give --out");
  check_writable(o.out);
  const auto texts = o.input.empty() ? o.texts : read_texts(o.input);
  std::optional<serve::LoadedEncoder> encoder;
  {
    const Waiting waiting(console(), "loading the model");
    encoder.emplace(serve::EncoderOptions{
        .model = o.model, .device = o.device, .dtype = o.dtype.type(), .threads = o.threads.checked("embed")});
  }
  if (const auto type = o.dtype.type(); type != DType::none) say_converted(type, encoder->model().converted_bytes());
  const auto width = encoder->model().config().width;
  if (o.dimensions > width)
    fail_usage("embed", "--dimensions: expected 1 to {}, those of the model, found {}", width, o.dimensions);

  const auto begin = Clock::now();
  std::vector<std::vector<std::int32_t>> ids;
  std::size_t tokens = 0;
  for (const auto& text : texts) tokens += ids.emplace_back(encoder->ids(text, o.truncate)).size();
  const auto vectors = encoder->embed(ids);
  const double seconds = seconds_since(begin);

  std::string lines;
  for (std::size_t i = 0; i < vectors.size(); ++i) {
    const auto& v = vectors[i];
    lines += fmt::format("{{\"index\":{},\"tokens\":{},\"embedding\":{}}}\n", i, ids[i].size(),
                         serve::json_list(o.dimensions > 0 ? infer::shortened(v, o.dimensions) : v));
  }
  if (o.out.empty()) print_text(lines);
  else io::write_file_atomic(o.out, lines);
  const double rate = static_cast<double>(tokens) / seconds;
  if (o.json)
    print_json({{"texts", texts.size()},
                {"tokens", tokens},
                {"dimensions", o.dimensions > 0 ? o.dimensions : width},
                {"seconds", seconds},
                {"tokens_per_second", rate},
                {"out", o.out}});
  else say("{}", dim(fmt::format("{} texts, {} tokens, {:.1f} per second", texts.size(), tokens, rate)));
  return exit_code::kDone;
}

}  // namespace

void add_embed(const Command& program, Run& run) {
  add_verb<EmbedOptions>(
      program, run, "embed", "Prints a vector for each text, as JSON lines",
      [](const Command& sub, EmbedOptions& o) {
        sub.option("--model", o.model, "Folder of an encoder, or a name in the local Hugging Face cache").required();
        sub.option("texts", o.texts, "Texts");
        sub.option("--input", o.input, "File with texts as JSON lines: {\"text\": TEXT}, or strings; - reads stdin")
            .kind("FILE");
        sub.option("--out", o.out, "File for the vectors; default: stdout").kind("FILE");
        sub.option("--dimensions", o.dimensions, "Only the first N numbers of each vector, as a vector of length 1")
            .positive();
        sub.flag("--truncate", o.truncate, "Cut texts that are longer than the model allows; without it, an error");
        sub.option("--device", o.device, "cpu, cuda or cuda:N").shows_default();
        add_dtype_option(sub, o.dtype);
        add_threads_option(sub, o.threads);
        sub.flag("--json", o.json, "With --out: one JSON object on stdout at the end");
      },
      embed);
}

}  // namespace hpcdl::cli
