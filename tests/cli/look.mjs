// Opens pages in Chromium and tells what is there: node look.mjs FOLDER_OF_MODULES CHROMIUM PAGE...
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [modules, executablePath, ...pages] = process.argv.slice(2);
const { chromium } = createRequire(`${modules}/node_modules/`)("playwright-core");
const browser = await chromium.launch({ executablePath, args: ["--no-sandbox"] });
const told = [];
for (const path of pages) {
  for (const width of [1280, 390]) {
    for (const colorScheme of ["light", "dark"]) {
      const page = await browser.newPage({ viewport: { width, height: 900 }, colorScheme });
      const errors = [], requests = [];
      page.on("console", (message) => errors.push(message.text()));
      page.on("pageerror", (error) => errors.push(error.message));
      page.on("request", (request) => requests.push(request.url().split(":")[0]));
      await page.goto(pathToFileURL(path).href);
      const drawn = await page.locator("#plot").count() > 0;
      if (drawn) await page.waitForFunction(() => document.documentElement.dataset.ready);
      const one = { path, width, colorScheme, errors, requests };
      Object.assign(one, await page.evaluate(() => ({
        overflow: document.documentElement.scrollWidth - innerWidth,
        milliseconds: +(document.documentElement.dataset.ready ?? 0),
        ink: getComputedStyle(document.body).color,
        ground: getComputedStyle(document.body).backgroundColor,
        spots: [...document.querySelectorAll("circle")].filter((c) => c.getClientRects().length).length,
      })));
      if (drawn) {
        const text = () => page.locator("#detail").innerText();
        one.first = await text();
        await page.locator("#plot").scrollIntoViewIfNeeded();
        const box = await page.locator("#plot .u-over").boundingBox();
        const began = Date.now();
        for (let i = 1; i <= 20; i++) {
          await page.mouse.move(box.x + (box.width * i) / 21, box.y + box.height / 2);
        }
        one.hoverMilliseconds = (Date.now() - began) / 20;
        one.hovered = await text();
        if (await page.locator("#model").count()) await page.selectOption("#model", "0");
        await page.locator("#plot").press("p");
        one.peak = await text();
        await page.locator("#plot").press("ArrowRight");
        one.next = await text();
        await page.locator("#plot").press("+");
        one.zoomed = await page.locator("#whole").isVisible();
        await page.selectOption("#by", "op type");
        one.legend = await page.locator("#legend").innerText();
        await page.locator("#weights").check();
        one.withWeights = await page.locator("#legend").innerText();
        one.sections = await page.locator("section:visible").count();
      } else {
        await page.locator("circle:visible").first().hover();
        one.hovered = await page.locator("#said").innerText();
      }
      told.push(one);
      await page.close();
    }
  }
}
await browser.close();
console.log(JSON.stringify(told));
