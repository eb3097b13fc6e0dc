#include "hpcdl/data/images/image_folder.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "hpcdl/core/error.h"
#include "hpcdl/data/images/decode_file.h"
#include "hpcdl/data/images/image_loader.h"
#include "hpcdl/data/images/resize.h"
#include "hpcdl/io/file.h"
#include "hpcdl/io/temp_folder.h"

namespace hpcdl::data {
namespace {

const fs::path kGolden = fs::path(HPCDL_SOURCE_DIR) / "hpcdl/data/images/golden";

Picture decoded(const std::string& name) {
  Picture p;
  decode_image(io::read_file(kGolden / name), name, p);
  return p;
}

/// All pixels differ by at most `by`.
void expect_near(const Picture& a, const Picture& b, int by, const std::string& what) {
  ASSERT_EQ(a.height, b.height) << what;
  ASSERT_EQ(a.width, b.width) << what;
  ASSERT_EQ(a.pixels.size(), b.pixels.size()) << what;
  int most = 0;
  for (std::size_t i = 0; i < a.pixels.size(); ++i) most = std::max(most, std::abs(a.pixels[i] - b.pixels[i]));
  EXPECT_LE(most, by) << what;
}

std::string error_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

TEST(decode_image, png_of_each_kind_is_exact) {
  const auto colour = decoded("colour.png");
  EXPECT_EQ(colour.height, 24);
  EXPECT_EQ(colour.width, 36);
  EXPECT_EQ(colour.pixels[0], 128);  // 128 + 100 sin 0, 0, 255
  EXPECT_EQ(colour.pixels[1], 0);
  EXPECT_EQ(colour.pixels[2], 255);
  EXPECT_EQ(decoded("alpha.png").pixels, colour.pixels);  // transparency is dropped
  EXPECT_EQ(decoded("palette.png").pixels, decoded("palette_rgb.png").pixels);
  EXPECT_EQ(decoded("colour16.png").pixels, colour.pixels) << "16 bits per channel";
  const auto grey = decoded("grey.png");
  for (std::size_t i = 0; i < grey.pixels.size(); i += 3)
    ASSERT_TRUE(grey.pixels[i] == grey.pixels[i + 1] && grey.pixels[i] == grey.pixels[i + 2]);
}

TEST(decode_image, jpeg_is_what_pillow_decodes) {
  // Both call the same library; its versions may round differently by one.
  expect_near(decoded("colour.jpg"), decoded("colour_jpg.png"), 1, "colour");
  expect_near(decoded("grey.jpg"), decoded("grey_jpg.png"), 1, "grey");
}

TEST(decode_image, refuses_in_words) {
  EXPECT_NE(error_of([] { decoded("cmyk.jpg"); }).find("cmyk.jpg: expected a JPEG in RGB or grey, found CMYK"),
            std::string::npos);
  Picture p;
  EXPECT_NE(error_of([&] { decode_image("GIF89a", "x.gif", p); }).find("x.gif: neither a JPEG nor a PNG"),
            std::string::npos);
}

TEST(decode_image, damaged_files_give_an_error_or_an_image_of_their_size) {
  for (const char* name : {"colour.jpg", "grey.jpg", "colour.png", "palette.png", "alpha.png"}) {
    const auto whole = io::read_file(kGolden / name);
    Picture p;
    for (std::size_t length = 2; length + 12 < whole.size(); ++length)
      EXPECT_THROW(decode_image(std::string_view(whole).substr(0, length), name, p), Error) << name << ' ' << length;
    for (std::size_t at = 0; at < whole.size(); ++at) {
      auto damaged = whole;
      damaged[at] = static_cast<char>(damaged[at] ^ (1 << (at % 8)));
      try {
        decode_image(damaged, name, p);
        EXPECT_EQ(p.pixels.size(), static_cast<std::size_t>(p.height) * static_cast<std::size_t>(p.width) * 3);
      } catch (const Error& e) {
        EXPECT_NE(std::string(e.what()).find(name), std::string::npos) << "the message must name the file";
      }
    }
  }
}

TEST(resize, is_what_pillow_makes) {
  const auto colour = decoded("colour.png");
  Picture out;
  for (const auto& [name, box, h, w] : {std::tuple{"smaller", Box{0, 0, 24, 36}, 7, 10},
                                        {"larger", Box{0, 0, 24, 36}, 31, 50},
                                        {"part", Box{3, 5, 17, 22}, 8, 8}}) {
    resize(colour, box, h, w, out);
    // Pillow also rounds to bytes between the two directions.
    expect_near(out, decoded("resized_" + std::string(name) + ".png"), 1, name);
  }
}

/// DIR/SUB/CLASS/00.png ..., n per class.
void make_class(const fs::path& folder, const std::string& file, int n) {
  fs::create_directories(folder);
  for (int i = 0; i < n; ++i)
    fs::copy_file(kGolden / file, folder / fmt::format("{:02}{}", i, fs::path(file).extension().string()));
}

TEST(image_folder, classes_are_sub_folders_in_the_order_of_their_names) {
  const io::TempFolder folder;
  make_class(folder / "train/dog", "colour.jpg", 3);
  make_class(folder / "train/cat", "grey.png", 2);
  make_class(folder / "val/dog", "colour.png", 1);
  std::ofstream(folder / "train/dog/notes.txt") << "not an image";
  const auto train = open_images(folder.path().string(), Split::train),
             test = open_images(folder.path().string(), Split::test);
  EXPECT_EQ(train->info().classes, (std::vector<std::string>{"cat", "dog"}));
  EXPECT_EQ(test->info().classes, train->info().classes);
  ASSERT_EQ(train->count(), 5);
  ASSERT_EQ(test->count(), 1);
  EXPECT_EQ(test->target(0), 1);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(train->target(i), i < 2 ? 0 : 1);
  Picture p;
  test->decode(0, p);
  EXPECT_EQ(p.pixels, decoded("colour.png").pixels);
}

TEST(image_folder, without_folders_for_the_splits_every_tenth_image_is_for_testing) {
  const io::TempFolder folder;
  make_class(folder / "a", "colour.png", 21);
  make_class(folder / "b", "grey.png", 10);
  const auto train = open_images(folder.path().string(), Split::train),
             test = open_images(folder.path().string(), Split::test);
  EXPECT_EQ(train->count(), 19 + 9);
  EXPECT_EQ(test->count(), 2 + 1);
}

TEST(image_folder, a_folder_of_test_images_is_all_for_testing) {
  const io::TempFolder folder;
  for (const char* split : {"train", "val", "test"}) make_class(folder / split / "a", "colour.png", 20);
  const auto count = [&](const std::string& path) {
    return open_images(path, Split::test, {.classes = {"a"}})->count();
  };
  for (const char* name : {"test", "test/", "val", "train/../test/."})
    EXPECT_EQ(count((folder / name).string()), 20) << name;
  EXPECT_EQ(open_images((folder / "val").string(), Split::train)->count(), 18);
  EXPECT_EQ(open_images((folder / "val").string(), Split::test)->count(), 2)
      << "for a run that trains on the other images";
  EXPECT_EQ(count((folder / "train").string()), 2) << "a tenth of the training images";
}

TEST(image_folder, a_class_may_be_called_train) {
  const io::TempFolder folder;
  for (const char* name : {"car", "test", "train"}) make_class(folder / name, "colour.png", 10);
  const auto set = open_images(folder.path().string(), Split::train);
  EXPECT_EQ(set->info().classes, (std::vector<std::string>{"car", "test", "train"}));
  EXPECT_EQ(set->count(), 27);
  EXPECT_EQ(open_images(folder.path().string(), Split::test)->count(), 3);
  fs::remove_all(folder / "car");
  EXPECT_NE(error_of([&] { open_images(folder.path().string(), Split::train); }).find("not a set of images"),
            std::string::npos)
      << "images that nobody has sorted";
}

TEST(image_folder, the_loader_resizes_and_names_a_damaged_file) {
  const io::TempFolder folder;
  make_class(folder / "train/a", "colour.jpg", 4);
  make_class(folder / "train/b", "grey.png", 4);
  const auto set = open_images(folder.path().string(), Split::train);
  EXPECT_THROW(ImageLoader(set, {.batch = 4}), Error) << "a size is needed";
  const ImageLoaderOptions options{
      .batch = 4, .workers = 2, .augment = {.height = 16, .width = 12, .flip = true, .random_resized = true}};
  {
    ImageLoader loader(set, options);
    EXPECT_EQ(loader.next().images.size(), 4u * 16 * 12 * 3);
    ImageEvalBatches eval(set, options);
    int batches = 0;
    while (eval.next() != nullptr) ++batches;
    EXPECT_EQ(batches, 2);
  }
  fs::resize_file(folder / "train/a/02.jpg", 400);
  ImageLoader loader(set, options);
  const auto error = error_of([&] { loader.next(), loader.next(); });
  EXPECT_NE(error.find("train/a/02.jpg: not a whole JPEG"), std::string::npos) << error;
}

TEST(image_folder, refuses_classes_that_training_has_not) {
  const io::TempFolder folder;
  make_class(folder / "train/a", "colour.png", 1);
  make_class(folder / "test/z", "colour.png", 1);
  EXPECT_NE(error_of([&] { open_images(folder.path().string(), Split::test); }).find("class z is not among"),
            std::string::npos);
}

TEST(image_folder, the_classes_of_a_model_keep_their_numbers) {
  const io::TempFolder folder;
  make_class(folder / "dog", "colour.png", 10);
  const auto path = folder.path().string();
  const auto set = open_images(path, Split::test, {.classes = {"cat", "dog"}});
  EXPECT_EQ(set->target(0), 1);
  EXPECT_EQ(set->classes(), 2);
  EXPECT_NE(
      error_of([&] { open_images(path, Split::test, {.classes = {"ant", "cat"}}); }).find("class dog is not among"),
      std::string::npos);
  EXPECT_NE(error_of([] {
              open_images("", Split::test, {.procedural_test = 1, .classes = {"ant"}});
            }).find("the model has learned ant"),
            std::string::npos);
}

TEST(image_set, classes_without_names_are_called_by_their_numbers) {
  EXPECT_TRUE(same_classes({"cat", "dog"}, {"cat", "dog"}));
  EXPECT_TRUE(same_classes({"cat", "dog"}, {"0", "1"}));
  EXPECT_FALSE(same_classes({"cat", "dog"}, {"1", "0"}));
  EXPECT_FALSE(same_classes({"cat", "dog"}, {"cat", "dog", "emu"}));
}

TEST(image_folder, a_sub_folder_without_images_is_named) {
  const io::TempFolder folder;
  make_class(folder / "cat", "colour.png", 10);
  fs::create_directories(folder / "zebra");
  std::string said;
  const auto set =
      open_images(folder.path().string(), Split::train, {.warn = [&](const std::string& line) { said += line; }});
  EXPECT_EQ(set->classes(), 1);
  EXPECT_NE(said.find("zebra contains no"), std::string::npos) << said;
}

}  // namespace
}  // namespace hpcdl::data
