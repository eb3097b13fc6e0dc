#include "hpcdl/data/text_source.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "hpcdl/core/error.h"
#include "hpcdl/io/tokenizer_scan.h"
#include "hpcdl/io/unicode.h"

namespace hpcdl::data {
namespace {

constexpr std::size_t npos = std::string_view::npos;
constexpr std::size_t kLongestUncut = std::size_t{256} << 20;

bool is_lines(const fs::path& path) {
  const fs::path ending = without_compression(path).extension();
  return ending == ".jsonl" || ending == ".ndjson";
}

bool is_text(const fs::path& path) {
  const fs::path ending = without_compression(path).extension();
  return ending == ".txt" || ending == ".md" || is_lines(path);
}

void add_folder(const fs::path& folder, const fs::path& not_text, std::vector<fs::path>& out) {
  std::error_code ignored;
  const std::size_t before = out.size();
  for (auto it = fs::recursive_directory_iterator(folder); it != fs::recursive_directory_iterator(); ++it) {
    const bool hidden = it->path().filename().string().starts_with('.');
    if (hidden && it->is_directory()) it.disable_recursion_pending();
    if (!hidden && it->is_regular_file() && is_text(it->path()) && !fs::equivalent(it->path(), not_text, ignored))
      out.push_back(it->path());
  }
  std::sort(out.begin() + static_cast<std::ptrdiff_t>(before), out.end());
  require(out.size() > before, "data",
          "{}: no text in this folder; expected files named .txt, .md, .jsonl or .ndjson (also .gz, .zst)",
          folder.string());
}

/// A good position to cut, near the end of the text.
std::size_t find_cut(std::string_view text, const TextOptions& options) {
  for (const std::size_t back : {text.size() / 64, text.size() / 2, text.size()})
    for (std::size_t at = text.size() - back; (at = io::find_safe_cut(text, at)) != npos; ++at)
      if (!options.is_inside || !options.is_inside(text, at)) return at;
  return npos;
}

}  // namespace

std::vector<fs::path> resolve_text_files(std::span<const fs::path> paths, const fs::path& not_text) {
  std::vector<fs::path> out;
  for (const fs::path& path : paths) {
    std::error_code error;
    const auto status = fs::status(path, error);
    require(status.type() != fs::file_type::not_found, "data", "{}: no such file or folder", path.string());
    require(!error, "data", "{}: {}", path.string(), error.message());
    require(fs::is_directory(status) || fs::is_regular_file(status), "data",
            "{}: expected a file or a folder of text, found a device, pipe or socket: write its contents to a file",
            path.string());
    try {
      if (fs::is_directory(status)) add_folder(path, not_text, out);
      else out.push_back(path);
    } catch (const fs::filesystem_error& e) {
      fail("data", "{}: {}", path.string(), e.code().message());
    }
  }
  require(!out.empty(), "data", "no text files given");
  return out;
}

TextReader::TextReader(std::vector<fs::path> files, TextOptions options)
    : files_(std::move(files)), options_(std::move(options)) {
  options_.block_bytes = std::max<std::size_t>(options_.block_bytes, 16);
  std::error_code ignored;
  for (const fs::path& file : files_)
    if (const auto size = fs::file_size(file, ignored); !ignored) total_ += static_cast<std::int64_t>(size);
}

TextReader::~TextReader() = default;

std::int64_t TextReader::done_bytes() const { return closed_bytes_ + (stream_ ? stream_->position() : 0); }

bool TextReader::open_next() {
  if (next_file_ == files_.size()) return false;
  stream_ = open_stream(files_[next_file_]);
  lines_ = is_lines(files_[next_file_++]);
  buffer_.clear();
  offset_ = line_ = 0;
  begun_ = false;
  return true;
}

void TextReader::close() {
  closed_bytes_ += stream_->position();
  stream_.reset();
}

std::vector<TextPart> TextReader::read() {
  std::vector<TextPart> out;
  std::size_t bytes = 0;
  while (bytes < options_.block_bytes && (stream_ || open_next())) {
    const std::size_t before = out.size();
    lines_ ? read_lines(out) : read_text(out);
    for (std::size_t i = before; i < out.size(); ++i) bytes += out[i].text.size();
  }
  return out;
}

std::string TextReader::checked(std::string_view text, std::int64_t offset) const {
  const std::size_t bad = io::find_invalid_utf8(text);
  if (bad == npos) return std::string(text);
  if (options_.replace_invalid) return io::replace_invalid_utf8(text);
  fail("data",
       "{}: byte 0x{:02X} at offset {} is not UTF-8 text; convert the file (iconv -f ... -t UTF-8) or have such bytes "
       "replaced (data.replace_invalid, tokenize --replace-invalid)",
       files_[next_file_ - 1].string(), static_cast<unsigned>(static_cast<unsigned char>(text[bad])),
       offset + static_cast<std::int64_t>(bad));
}

void TextReader::read_text(std::vector<TextPart>& out) {
  const std::size_t before = buffer_.size();
  stream_->read(buffer_, options_.block_bytes);
  const bool end = buffer_.size() - before < options_.block_bytes;
  std::size_t cut = end ? buffer_.size() : find_cut(buffer_, options_);
  if (cut == npos && buffer_.size() < kLongestUncut) return;
  if (cut == npos) cut = io::complete_utf8_prefix(buffer_);
  if (cut > 0) {
    out.push_back({checked(std::string_view(buffer_).substr(0, cut), offset_), !begun_});
    documents_ += !begun_;
    begun_ = true;
  }
  buffer_.erase(0, cut);
  offset_ += static_cast<std::int64_t>(cut);
  if (end) close();
}

void TextReader::read_lines(std::vector<TextPart>& out) {
  const std::size_t before = buffer_.size();
  stream_->read(buffer_, options_.block_bytes);
  const bool end = buffer_.size() - before < options_.block_bytes;
  std::size_t at = 0;
  for (std::size_t stop; at < buffer_.size(); at = stop + 1) {
    stop = buffer_.find('\n', at);
    if (stop == npos && !end) break;
    if (stop == npos) stop = buffer_.size();
    ++line_;
    std::string_view line = std::string_view(buffer_).substr(at, stop - at);
    if (line_ == 1 && line.starts_with("\uFEFF")) line.remove_prefix(3);
    add_line(line, out);
    offset_ += static_cast<std::int64_t>(stop + 1 - at);
  }
  buffer_.erase(0, at);
  if (end) close();
}

void TextReader::add_line(std::string_view line, std::vector<TextPart>& out) {
  if (line.find_first_not_of(" \t\r") == npos) return;
  const std::string text = checked(line, offset_);
  const std::string where = fmt::format("{}: line {}", files_[next_file_ - 1].string(), line_);
  const auto object = nlohmann::json::parse(text, nullptr, false);
  require(!object.is_discarded(), "data", "{} is not JSON", where);
  require(object.is_object() && object.contains(options_.key), "data",
          "{} has no key \"{}\"; name the key that holds the text", where, options_.key);
  const auto& value = object[options_.key];
  require(value.is_string(), "data", "{}: the value of \"{}\" is not a string", where, options_.key);
  out.push_back({value.get<std::string>(), true});
  ++documents_;
}

}  // namespace hpcdl::data
