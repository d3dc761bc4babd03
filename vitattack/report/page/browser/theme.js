// Light, dark, or as the machine has it.
const THEMES = ['auto', 'light', 'dark'];
const dark = matchMedia('(prefers-color-scheme: dark)');
let theme = 'auto';

function remembered() {
  try { return localStorage.getItem('vitattack-theme'); } catch { return null; } // a page from a file may have no storage
}

function setTheme(wanted) {
  theme = THEMES.includes(wanted) ? wanted : 'auto';
  document.documentElement.dataset.theme = theme === 'auto' ? (dark.matches ? 'dark' : 'light') : theme;
  byId('theme').textContent = `Theme: ${theme}`;
  try { localStorage.setItem('vitattack-theme', theme); } catch { /* it is only forgotten */ }
}

setTheme(remembered());
byId('theme').hidden = false;
byId('theme').addEventListener('click', () => setTheme(THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length]));
dark.addEventListener('change', () => setTheme(theme));

// Paper is white.
addEventListener('beforeprint', () => { document.documentElement.dataset.theme = 'light'; });
addEventListener('afterprint', () => setTheme(theme));
