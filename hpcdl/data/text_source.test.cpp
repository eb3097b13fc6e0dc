#include "hpcdl/data/text_source.h"

#include <gtest/gtest.h>
#include <zlib.h>
#include <zstd.h>

#include "hpcdl/core/error.h"
#include "hpcdl/io/atomic_file.h"
#include "hpcdl/io/temp_folder.h"

namespace hpcdl::data {
namespace {

using io::TempFolder;

std::string message_of(const auto& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

fs::path write(const fs::path& path, std::string_view text) {
  io::make_folder(path.parent_path());
  io::write_file_atomic(path, text);
  return path;
}

/// Documents, put together from their parts.
std::vector<std::string> documents(const fs::path& file, TextOptions options = {}, std::size_t block = 8 << 20) {
  options.block_bytes = block;
  TextReader reader({file}, options);
  std::vector<std::string> out;
  for (auto parts = reader.read(); !parts.empty(); parts = reader.read())
    for (auto& p : parts) p.begins_document ? out.push_back(p.text) : void(out.back() += p.text);
  EXPECT_EQ(reader.done_bytes(), reader.total_bytes());
  EXPECT_EQ(reader.documents(), static_cast<std::int64_t>(out.size()));
  return out;
}

std::string gzip(const std::string& text) {
  z_stream z{};
  deflateInit2(&z, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY);
  std::string out(deflateBound(&z, text.size()), '\0');
  z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  z.avail_in = static_cast<uInt>(text.size());
  z.next_out = reinterpret_cast<Bytef*>(out.data());
  z.avail_out = static_cast<uInt>(out.size());
  deflate(&z, Z_FINISH);
  out.resize(out.size() - z.avail_out);
  deflateEnd(&z);
  return out;
}

std::string zstd(const std::string& text) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 3));
  return out;
}

std::string long_text() {
  std::string text;
  for (int i = 0; i < 20000; ++i)
    text += "w\u00f6rd" + std::to_string(i % 77) + (i % 9 ? " and " : ".\n\u4e2d\u6587\n");
  return text;
}

TEST(text_source, a_folder_is_searched_in_order) {
  const TempFolder tmp;
  for (const char* name :
       {"b.txt", "a/z.jsonl", "a/c.md", "d.txt.gz", "e.jsonl.zst", "skip.png", ".hidden.txt", ".git/x.txt"})
    write(tmp / name, "x");
  std::vector<std::string> names;
  const fs::path folder[] = {tmp.path()};
  for (const auto& f : resolve_text_files(folder)) names.push_back(fs::relative(f, tmp.path()).string());
  EXPECT_EQ(names, (std::vector<std::string>{"a/c.md", "a/z.jsonl", "b.txt", "d.txt.gz", "e.jsonl.zst"}));
}

TEST(text_source, says_what_is_missing) {
  const TempFolder tmp;
  const fs::path folder[] = {tmp.path()}, nothing[] = {tmp / "no"};
  EXPECT_NE(message_of([&] { resolve_text_files(folder); }).find("no text in this folder"), std::string::npos);
  EXPECT_NE(message_of([&] { resolve_text_files(nothing); }).find("no such file"), std::string::npos);
  EXPECT_THROW(resolve_text_files({}), Error);
  fs::create_symlink("loop", tmp / "loop");
  const fs::path loop[] = {tmp / "loop"}, device[] = {"/dev/null"};
  EXPECT_NE(message_of([&] { resolve_text_files(loop); }).find("loop: Too many levels"), std::string::npos);
  EXPECT_NE(message_of([&] { resolve_text_files(device); }).find("found a device, pipe or socket"), std::string::npos);
}

TEST(text_source, a_file_that_is_no_text_is_left_out_of_folders) {
  const TempFolder tmp;
  for (const char* name : {"b.txt", "run/metrics.jsonl", "other/metrics.jsonl"}) write(tmp / name, "x");
  const fs::path given[] = {tmp.path(), tmp / "run/metrics.jsonl"};
  std::vector<std::string> names;
  for (const auto& f : resolve_text_files(given, tmp / "run/../run/metrics.jsonl"))
    names.push_back(fs::relative(f, tmp.path()).string());
  EXPECT_EQ(names, (std::vector<std::string>{"b.txt", "other/metrics.jsonl", "run/metrics.jsonl"}));
}

TEST(text_source, blocks_do_not_change_a_document) {
  const TempFolder tmp;
  const std::string text = long_text();
  const fs::path plain = write(tmp / "t.txt", text), gz = write(tmp / "t.txt.gz", gzip(text) + gzip("tail")),
                 filled = write(tmp / "f.txt.gz", gzip(text) + gzip("tail") + std::string(300'000, '\0')),
                 zst = write(tmp / "t.txt.zst", zstd(text) + zstd("tail"));
  for (const std::size_t block : {std::size_t{100}, std::size_t{4096}, std::size_t{1} << 20}) {
    EXPECT_EQ(documents(plain, {}, block), std::vector{text}) << block;
    EXPECT_EQ(documents(gz, {}, block), std::vector{text + "tail"}) << block;
    EXPECT_EQ(documents(filled, {}, block), std::vector{text + "tail"}) << block;
    EXPECT_EQ(documents(zst, {}, block), std::vector{text + "tail"}) << block;
  }
  TextReader reader({plain}, {.block_bytes = 4096});
  EXPECT_GT(reader.read().front().text.size(), 2048u);
}

TEST(text_source, an_empty_file_has_no_document) {
  const TempFolder tmp;
  EXPECT_TRUE(documents(write(tmp / "e.txt", "")).empty());
  EXPECT_TRUE(documents(write(tmp / "e.jsonl", "\n \n")).empty());
}

TEST(text_source, every_line_of_jsonl_is_a_document) {
  const TempFolder tmp;
  const fs::path f = write(tmp / "t.jsonl",
                           "\xEF\xBB\xBF{\"text\": \"one\\nline\", \"x\": 1}\r\n\n{\"text\": \"\u00e9\"}\n{\"text\": "
                           "\"\"}\n{\"text\": \"last\"}");
  for (const std::size_t block : {std::size_t{16}, std::size_t{1} << 20})
    EXPECT_EQ(documents(f, {}, block), (std::vector<std::string>{"one\nline", "\u00e9", "", "last"}));
  EXPECT_EQ(documents(write(tmp / "k.jsonl", "{\"body\": \"b\"}\n"), {.key = "body"}), std::vector<std::string>{"b"});
}

TEST(text_source, names_file_and_place_of_what_is_wrong) {
  const TempFolder tmp;
  const auto message = [&](const std::string& name, const std::string& text, std::size_t block = 8 << 20) {
    return message_of([&] { documents(write(tmp / name, text), {}, block); });
  };
  EXPECT_NE(message("bad.txt", "abc \xff").find("bad.txt: byte 0xFF at offset 4"), std::string::npos);
  EXPECT_NE(
      message("late.txt", std::string(5000, 'a') + " b " + std::string(5000, 'c') + "\xff", 1000).find("offset 10003"),
      std::string::npos);
  EXPECT_NE(message("cut.txt", "abc\xE2\x82").find("offset 3"), std::string::npos);
  EXPECT_NE(message("j.jsonl", "{\"text\": \"a\"}\n{oops\n").find("j.jsonl: line 2 is not JSON"), std::string::npos);
  EXPECT_NE(message("k.jsonl", "{\"body\": \"a\"}\n").find("line 1 has no key \"text\""), std::string::npos);
  EXPECT_NE(message("n.jsonl", "{\"text\": 5}\n").find("not a string"), std::string::npos);
  EXPECT_NE(message("u.jsonl", "{}\n{\"text\": \"\xff\"}").find("no key"), std::string::npos);
  EXPECT_NE(message("v.jsonl", "{\"text\": \"a\"}\n{\"text\": \"\xff\"}").find("offset 24"), std::string::npos);
  EXPECT_EQ(documents(write(tmp / "r.txt", "a\xff"), {.replace_invalid = true}), std::vector<std::string>{"a\uFFFD"});
}

TEST(text_source, damaged_compression_is_an_error) {
  const TempFolder tmp;
  const std::string gz = gzip(long_text()), zst = zstd(long_text());
  for (const std::size_t keep : {gz.size() / 2, gz.size() - 1}) {
    const fs::path cut = write(tmp / "t.txt.gz", gz.substr(0, keep));
    EXPECT_NE(message_of([&] { documents(cut); }).find("too early"), std::string::npos) << keep;
  }
  EXPECT_NE(message_of([&] { documents(write(tmp / "t.txt.zst", zst.substr(0, zst.size() / 2))); }).find("too early"),
            std::string::npos);
  EXPECT_NE(message_of([&] { documents(write(tmp / "p.txt.gz", "plain text")); }).find("cannot decompress"),
            std::string::npos);
  EXPECT_NE(message_of([&] { documents(write(tmp / "p.txt.zst", "plain text")); }).find("cannot decompress"),
            std::string::npos);
}

}  // namespace
}  // namespace hpcdl::data
