/* SPDX-License-Identifier: Apache-2.0
 *
 * A host with the symbols that the plugins of these tests need. */
int spank_get_item(void *spank, int item, ...);
void debug(const char *fmt, ...);

int spank_get_item(void *spank, int item, ...)
{
	(void)spank;
	(void)item;
	return 0;
}

void debug(const char *fmt, ...)
{
	(void)fmt;
}

int main(void)
{
	return 0;
}
