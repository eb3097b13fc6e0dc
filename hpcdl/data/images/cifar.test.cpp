#include "hpcdl/data/images/cifar.h"

#include <gtest/gtest.h>

#include <fstream>

#include "hpcdl/core/error.h"
#include "hpcdl/data/images/tar.h"
#include "hpcdl/io/file.h"
#include "hpcdl/io/temp_folder.h"

namespace hpcdl::data {
namespace {

const fs::path kGolden = fs::path(HPCDL_SOURCE_DIR) / "hpcdl/data/images/golden";

/// As defined in golden/make_images.py.
std::uint8_t pixel(int file, int image, int c, int y, int x) {
  return static_cast<std::uint8_t>((37 * file + 11 * image + 80 * c + 5 * y + 3 * x) % 256);
}

void expect_images(const ImageSet& set, int first_file, int files, int each) {
  ASSERT_EQ(set.count(), files * each);
  Picture p;
  for (int n = 0; n < files * each; ++n) {
    const int file = first_file + n / each, image = n % each;
    set.decode(n, p);
    EXPECT_EQ(set.target(n), set.classes() == 10 ? (2 * file + image) % 10 : (7 * file + 13 * image) % 100);
    ASSERT_EQ(p.pixels.size(), 3072u);
    for (int y = 0; y < 32; ++y)
      for (int x = 0; x < 32; ++x)
        for (int c = 0; c < 3; ++c)
          ASSERT_EQ(p.pixels[static_cast<std::size_t>((y * 32 + x) * 3 + c)], pixel(file, image, c, y, x)) << n;
  }
}

void expect_golden(const fs::path& path, int classes) {
  const auto train = open_images(path.string(), Split::train), test = open_images(path.string(), Split::test);
  ASSERT_EQ(train->classes(), classes);
  EXPECT_EQ(train->info().classes, test->info().classes);
  EXPECT_EQ(train->info().classes[3], classes == 10 ? "cat" : "fine_3");
  EXPECT_EQ(train->info().height, 32);
  if (classes == 10) expect_images(*train, 0, 5, 2), expect_images(*test, 5, 1, 2);
  else expect_images(*train, 0, 1, 3), expect_images(*test, 1, 1, 2);
}

struct Golden {
  const char* name;
  int classes;
};
constexpr Golden kArchives[] = {{"cifar10-binary.tar.gz", 10},
                                {"cifar10-python.tar.gz", 10},
                                {"cifar100-binary.tar.gz", 100},
                                {"cifar100-python.tar.gz", 100}};

void write(const fs::path& path, std::string_view bytes) {
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

/// All files of an archive under `to`.
void unpack(const fs::path& archive, const fs::path& to) {
  for (const auto& [name, contents] : read_tar(archive, [](const std::string&) { return true; }))
    write(to / name, contents);
}

std::string error_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

TEST(cifar, cifar_100_has_twenty_coarse_classes_too) {
  for (const char* name : {"cifar100-binary.tar.gz", "cifar100-python.tar.gz"}) {
    const io::TempFolder folder;
    unpack(kGolden / name, folder.path());
    for (const auto& path : {kGolden / name, fs::path(folder.path())}) {
      SCOPED_TRACE(path.string());
      const auto fine = open_images(path.string(), Split::train),
                 coarse = open_images(path.string(), Split::train, {.coarse = true});
      ASSERT_EQ(coarse->classes(), 20);
      ASSERT_EQ(coarse->count(), fine->count());
      const auto known = open_images(path.string(), Split::test, {.classes = coarse->info().classes});
      EXPECT_EQ(known->info().classes, coarse->info().classes)
          << "classes of the model, which was trained on coarse labels";
      Picture a, b;
      for (std::int64_t i = 0; i < fine->count(); ++i) {
        EXPECT_EQ(coarse->target(i), fine->target(i) / 5) << "the rule of golden/make_images.py";
        coarse->decode(i, a), fine->decode(i, b);
        EXPECT_EQ(a.pixels, b.pixels);
      }
    }
  }
  EXPECT_NE(error_of([] {
              open_images((kGolden / "cifar10-binary.tar.gz").string(), Split::train, {.coarse = true});
            }).find("coarse classes are for CIFAR-100"),
            std::string::npos);
}

TEST(cifar, the_four_archives_and_their_unpacked_folders_hold_the_same_images) {
  for (const auto& [name, classes] : kArchives) {
    SCOPED_TRACE(name);
    expect_golden(kGolden / name, classes);
    const io::TempFolder folder;
    unpack(kGolden / name, folder.path());
    expect_golden(folder.path(), classes);                      // the folder that contains cifar-10-batches-bin
    expect_golden(io::list_folder(folder.path())[0], classes);  // and that folder itself
  }
}

TEST(cifar, an_archive_that_ends_early_says_so) {
  const io::TempFolder folder;
  for (const auto& [name, classes] : kArchives) {
    const auto whole = io::read_file(kGolden / name);
    for (const std::size_t cut : {std::size_t{1}, std::size_t{8}, whole.size() / 2, whole.size() - 11}) {
      const auto path = folder / name;
      write(path, std::string_view(whole).substr(0, whole.size() - cut));
      const auto error = error_of([&] { open_images(path.string(), Split::train); });
      EXPECT_NE(error.find("truncated"), std::string::npos) << cut << ": " << error;
      EXPECT_NE(error.find(name), std::string::npos) << error;
    }
  }
}

TEST(cifar, a_missing_or_cut_file_is_named) {
  const io::TempFolder folder;
  unpack(kGolden / "cifar10-binary.tar.gz", folder.path());
  const auto files = folder / "cifar-10-batches-bin";
  fs::resize_file(files / "data_batch_2.bin", 3073 + 100);
  EXPECT_NE(error_of([&] {
              open_images(files.string(), Split::train);
            }).find("data_batch_2.bin: 3173 bytes are not a number of images of 3073"),
            std::string::npos);
  EXPECT_EQ(open_images(files.string(), Split::test)->count(), 2);  // unrelated
  fs::remove(files / "data_batch_2.bin");
  EXPECT_NE(error_of([&] { open_images(files.string(), Split::train); }).find("data_batch_2.bin is missing"),
            std::string::npos);
}

TEST(cifar, a_class_that_cannot_be_is_an_error) {
  std::string bytes(3073, '\x01');
  EXPECT_EQ(read_cifar_binary(bytes, 10, "x").targets, std::vector<std::int32_t>{1});
  bytes[0] = 10;
  EXPECT_NE(error_of([&] { read_cifar_binary(bytes, 10, "x"); }).find("x: image 0 has class 10; expected 0 to 9"),
            std::string::npos);
}

TEST(cifar, a_published_name_with_another_checksum_is_a_warning) {
  const io::TempFolder folder;
  fs::copy_file(kGolden / "cifar10-python.tar.gz", folder / "cifar-10-python.tar.gz");
  std::vector<std::string> said;
  const OpenImages options{.warn = [&](const std::string& s) { said.push_back(s); }};
  EXPECT_EQ(open_images((folder / "cifar-10-python.tar.gz").string(), Split::train, options)->count(), 10);
  ASSERT_EQ(said.size(), 1u);
  EXPECT_NE(said[0].find("c58f30108f718f92721af3b95e74349a"), std::string::npos) << said[0];
  open_images((kGolden / "cifar10-python.tar.gz").string(), Split::train,
              options);  // a name without a published archive
  EXPECT_EQ(said.size(), 1u);
}

TEST(cifar, a_path_without_images_is_a_clear_error) {
  const io::TempFolder folder;
  write(folder / "notes.txt", "hello");
  write(folder / "sub/readme.md", "hello");
  for (const auto& path : {folder.path(), folder / "notes.txt"})
    EXPECT_NE(error_of([&] { open_images(path.string(), Split::train); }).find("not a set of images"),
              std::string::npos);
  EXPECT_NE(error_of([&] { open_images((folder / "none").string(), Split::train); }).find("no such file"),
            std::string::npos);
}

/// A flipped bit in any byte, and any length, gives an Error or exactly the right images: the checksum of the archive
/// ensures that.
TEST(cifar, a_damaged_archive_never_gives_other_images) {
  const io::TempFolder folder;
  for (const auto& [name, classes] : kArchives) {
    const auto whole = io::read_file(kGolden / name);
    const auto path = folder / name;
    std::size_t errors = 0, tried = 0;
    for (std::size_t at = 0; at < whole.size(); at += 3, ++tried) {
      auto damaged = whole;
      damaged[at] = static_cast<char>(damaged[at] ^ (1 << (at % 8)));
      write(path, damaged);
      try {
        const auto set = open_images(path.string(), Split::test);
        expect_images(*set, classes == 10 ? 5 : 1, 1, 2);
      } catch (const Error&) {
        ++errors;
      }
    }
    EXPECT_GT(errors,
              tried * 9 / 10);  // not a date in the header, or a distance that decodes to the same bytes
    for (std::size_t length = 0; length < whole.size(); length += 17) {
      write(path, std::string_view(whole).substr(0, length));
      EXPECT_THROW(open_images(path.string(), Split::test), Error) << length;
    }
  }
}

/// Without a checksum damage may go undetected, but the result is consistent: as many pixels as targets, and classes
/// that exist.
void expect_sound(const CifarPiece& piece, int classes) {
  EXPECT_EQ(piece.pixels.size(), piece.targets.size() * 3072);
  for (const auto t : piece.targets) EXPECT_TRUE(t >= 0 && t < classes);
}

TEST(cifar, damaged_pickles_give_an_error_or_sound_images) {
  for (const auto& [name, classes] : kArchives) {
    if (std::string(name).find("python") == std::string::npos) continue;
    const auto files =
        read_tar(kGolden / name, [](const std::string& n) { return n.ends_with("test") || n.ends_with("test_batch"); });
    ASSERT_EQ(files.size(), 1u);
    const std::string& whole = files.begin()->second;
    const auto try_it = [&, n = classes](const std::string& bytes) {
      try {
        expect_sound(read_cifar_python(bytes, n, "x"), n);
      } catch (const Error&) {}
    };
    for (std::size_t at = 0; at < whole.size();
         at += at > 1000 && at + 1000 < whole.size() ? 61 : 1)  // the middle contains pixels
      for (const int value :
           {0, 1, 2, 127, 128, 255, int{'.'}, int{'('}, int{'q'}, int{'R'}, whole[at] ^ 1, whole[at] ^ 64}) {
        auto damaged = whole;
        damaged[at] = static_cast<char>(value);
        try_it(damaged);
      }
    for (std::size_t length = 0; length < whole.size();
         length += length > 1000 && length + 1000 < whole.size() ? 61 : 1)
      EXPECT_THROW(read_cifar_python(whole.substr(0, length), classes, "x"), Error) << length;
  }
}

}  // namespace
}  // namespace hpcdl::data
